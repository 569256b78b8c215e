#include "graph_partitioner/ir/paged_attention.h"

#include <cmath>
#include <limits>

#include "kernels/reference/conversions.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

// The rules are those of graph_partitioner/ir/paged_attention.h.
class PagedAttention {
 public:
  explicit PagedAttention(const Call& call)
      : call_(call),
        node_(ir::PagedAttention::from(call.node)),
        q_(call.input(kQ)),
        keys_(call.input(kKeyCache)),
        values_(call.input(kValueCache)),
        heads_(q_.dims[1]),
        width_(q_.dims[2]),
        pages_(keys_.dims[0]),
        page_(keys_.dims[1]),
        kv_heads_(keys_.dims[2]),
        pages_of_one_(call.input(kTable).dims[1]) {}

  Outputs run() {
    store_new_rows();
    ReferenceTensor y = ReferenceTensor::zeros(q_.dtype, {q_.dims[0], heads_ * width_});
    for (int64_t t = 0; t < q_.dims[0]; ++t) {
      for (int64_t h = 0; h < heads_; ++h) attend(t, h, y);
    }
    return {std::move(y), std::move(keys_), std::move(values_)};
  }

 private:
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

  int64_t integer(size_t input, int64_t at) const {
    return call_.input(input).integers.at(static_cast<size_t>(at));
  }

  // Of element `at` of a cache.
  double scale_of(size_t input, int64_t at) const {
    if (!call_.has(input)) return 1.0;
    const ReferenceTensor& scale = call_.input(input);
    return scale.number(scale.elements() == 1 ? 0 : at % scale.elements());
  }

  // Over all pages; -1: there is none.
  int64_t slot_of(int64_t sequence, int64_t key) const {
    if (key < 0 || key >= pages_of_one_ * page_) return -1;
    return integer(kTable, sequence * pages_of_one_ + key / page_) * page_ + key % page_;
  }

  void store(ReferenceTensor& cache, int64_t at, size_t from, int64_t element, size_t scale) const {
    const ReferenceTensor& x = call_.input(from);
    if (!call_.has(scale)) return cache.copy_element(at, x, element);
    const double scaled =
        as_held(DType::kF32, as_held(x.dtype, x.number(element)) / scale_of(scale, at));
    cache.set(at, decode(cache.dtype, quantize(cache.dtype, scaled, 0)));
  }

  void store_new_rows() {
    for (int64_t t = 0; t < q_.dims[0]; ++t) {
      const int64_t slot = call_.has(kSlots) ? integer(kSlots, t)
                                             : slot_of(integer(kRows, t), integer(kPositions, t));
      if (slot < 0 || slot >= pages_ * page_) continue;
      for (int64_t i = 0; i < kv_heads_ * width_; ++i) {
        const int64_t to = slot * kv_heads_ * width_ + i, from = t * kv_heads_ * width_ + i;
        store(keys_, to, kK, from, kKScale);
        store(values_, to, kV, from, kVScale);
      }
    }
  }

  // A key that a query sees: where its row of a head begins in the caches, and its score.
  struct Seen {
    int64_t place;
    double score;
  };

  std::vector<Seen> seen_by(int64_t t, int64_t h) const {
    const double scale =
        node_.scale != 0 ? node_.scale : 1 / std::sqrt(static_cast<double>(width_));
    const int64_t position = integer(kPositions, t), q_at = (t * heads_ + h) * width_;
    const int64_t end = std::min(position + 1, pages_of_one_ * page_);
    const int64_t first =
        node_.left_window < 0 ? 0 : std::max<int64_t>(0, position - node_.left_window);
    std::vector<Seen> out;
    for (int64_t j = first; j < end; ++j) {
      const int64_t slot = slot_of(integer(kRows, t), j);
      const int64_t place = (slot * kv_heads_ + h / (heads_ / kv_heads_)) * width_;
      double product = 0;
      for (int64_t d = 0; d < width_; ++d) {
        product += q_.number(q_at + d) * keys_.number(place + d) * scale_of(kKScale, place + d);
      }
      const double raw = product * scale;
      out.push_back(
          {place, node_.softcap > 0 ? node_.softcap * std::tanh(raw / node_.softcap) : raw});
    }
    return out;
  }

  // Head h of token t.
  void attend(int64_t t, int64_t h, ReferenceTensor& y) const {
    const std::vector<Seen> seen = seen_by(t, h);
    if (seen.empty()) return;
    double largest = call_.has(kSinks) ? call_.input(kSinks).number(h)
                                       : -std::numeric_limits<double>::infinity();
    for (const Seen& key : seen) largest = std::max(largest, key.score);
    std::vector<double> sums(static_cast<size_t>(width_), 0.0);
    double total = 0;
    if (call_.has(kSinks)) total = std::exp(call_.input(kSinks).number(h) - largest);
    for (const Seen& key : seen) {
      const double weight = std::exp(key.score - largest);
      total += weight;
      for (int64_t d = 0; d < width_; ++d) {
        const int64_t at = key.place + d;
        sums[static_cast<size_t>(d)] += weight * values_.number(at) * scale_of(kVScale, at);
      }
    }
    const int64_t y_at = (t * heads_ + h) * width_;
    for (int64_t d = 0; d < width_; ++d) y.set(y_at + d, sums[static_cast<size_t>(d)] / total);
  }

  const Call& call_;
  const ir::PagedAttention node_;
  const ReferenceTensor& q_;
  ReferenceTensor keys_, values_;  // the caches
  const int64_t heads_, width_, pages_, page_, kv_heads_;
  const int64_t pages_of_one_;  // of one sequence
};

Outputs paged_attention(const Call& call) { return PagedAttention(call).run(); }

constexpr auto kOps = std::to_array<OpEntry>({{"tenon::PagedAttention", paged_attention}});

}  // namespace

std::span<const OpEntry> paged_attention_ops() { return kOps; }

}  // namespace tenon::kernels::reference
