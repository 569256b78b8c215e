#include "graph_partitioner/ir/paged_attention.h"

#include <cmath>
#include <limits>

#include "kernels/reference/conversions.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

// The rules are those of graph_partitioner/ir/paged_attention.h.
Outputs paged_attention(const Call& call) {
  enum {
    kQ,
    kK,
    kV,
    kKeyCache,
    kValueCache,
    kRows,
    kPositions,
    kTable,
    kSlots,
    kSinks,
    kKScale,
    kVScale
  };
  const ir::PagedAttention node = ir::PagedAttention::from(call.node);
  const ReferenceTensor& q = call.input(kQ);
  ReferenceTensor keys = call.input(kKeyCache), values = call.input(kValueCache);
  const int64_t heads = q.dims[1], width = q.dims[2], pages = keys.dims[0], page = keys.dims[1],
                kv_heads = keys.dims[2], pages_of_one = call.input(kTable).dims[1];
  // Of element `at` of a cache.
  const auto scale_of = [&](size_t input, int64_t at) {
    if (!call.has(input)) return 1.0;
    const ReferenceTensor& scale = call.input(input);
    return scale.number(scale.elements() == 1 ? 0 : at % scale.elements());
  };
  const auto store = [&](ReferenceTensor& cache, int64_t at, size_t from, int64_t element,
                         size_t scale) {
    const ReferenceTensor& x = call.input(from);
    if (!call.has(scale)) return cache.copy_element(at, x, element);
    const double scaled =
        as_held(DType::kF32, as_held(x.dtype, x.number(element)) / scale_of(scale, at));
    cache.set(at, decode(cache.dtype, quantize(cache.dtype, scaled, 0)));
  };
  const auto integer = [&](size_t input, int64_t at) {
    return call.input(input).integers.at(static_cast<size_t>(at));
  };
  // Over all pages; -1: there is none.
  const auto slot_of = [&](int64_t sequence, int64_t key) {
    if (key < 0 || key >= pages_of_one * page) return int64_t{-1};
    return integer(kTable, sequence * pages_of_one + key / page) * page + key % page;
  };
  for (int64_t t = 0; t < q.dims[0]; ++t) {
    const int64_t slot =
        call.has(kSlots) ? integer(kSlots, t) : slot_of(integer(kRows, t), integer(kPositions, t));
    if (slot < 0 || slot >= pages * page) continue;
    for (int64_t i = 0; i < kv_heads * width; ++i) {
      const int64_t to = slot * kv_heads * width + i, from = t * kv_heads * width + i;
      store(keys, to, kK, from, kKScale);
      store(values, to, kV, from, kVScale);
    }
  }
  ReferenceTensor y = ReferenceTensor::zeros(q.dtype, {q.dims[0], heads * width});
  const double scale = node.scale != 0 ? node.scale : 1 / std::sqrt(static_cast<double>(width));
  for (int64_t t = 0; t < q.dims[0]; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t position = integer(kPositions, t), q_at = (t * heads + h) * width;
      const int64_t end = std::min(position + 1, pages_of_one * page);
      const int64_t first =
          node.left_window < 0 ? 0 : std::max<int64_t>(0, position - node.left_window);
      std::vector<double> scores, sums(static_cast<size_t>(width), 0.0);
      std::vector<int64_t> places;
      double largest = call.has(kSinks) ? call.input(kSinks).number(h)
                                        : -std::numeric_limits<double>::infinity();
      double total = 0;
      for (int64_t j = first; j < end; ++j) {
        const int64_t slot = slot_of(integer(kRows, t), j);
        places.push_back((slot * kv_heads + h / (heads / kv_heads)) * width);
        double product = 0;
        for (int64_t d = 0; d < width; ++d) {
          const int64_t at = places.back() + d;
          product += q.number(q_at + d) * keys.number(at) * scale_of(kKScale, at);
        }
        const double raw = product * scale;
        scores.push_back(node.softcap > 0 ? node.softcap * std::tanh(raw / node.softcap) : raw);
        largest = std::max(largest, scores.back());
      }
      if (scores.empty()) continue;
      if (call.has(kSinks)) total = std::exp(call.input(kSinks).number(h) - largest);
      for (size_t j = 0; j < scores.size(); ++j) {
        const double weight = std::exp(scores[j] - largest);
        total += weight;
        for (int64_t d = 0; d < width; ++d) {
          const int64_t at = places[j] + d;
          sums[static_cast<size_t>(d)] += weight * values.number(at) * scale_of(kVScale, at);
        }
      }
      for (int64_t d = 0; d < width; ++d) y.set(q_at + d, sums[static_cast<size_t>(d)] / total);
    }
  }
  return {std::move(y), std::move(keys), std::move(values)};
}

constexpr auto kOps = std::to_array<OpEntry>({{"tenon::PagedAttention", paged_attention}});

}  // namespace

std::span<const OpEntry> paged_attention_ops() { return kOps; }

}  // namespace tenon::kernels::reference
