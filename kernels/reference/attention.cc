#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/convert.h"
#include "base/error.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/head_layout.h"
#include "kernels/reference/conversions.h"
#include "kernels/reference/heads.h"
#include "kernels/reference/op.h"
#include "kernels/reference/rotary.h"

namespace tenon::kernels::reference {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// One attention on [B, H, S, D] tensors; keys and values hold all rows, past ones first.
struct Problem {
  ReferenceTensor q, k, v;
  double scale = 0;
  double softcap = 0;
  double probability_scale = 0;  // 0: probabilities stay as they are
  DType probability_type = DType::kF32, probability_codes = DType::kF8E4M3FN;
  std::vector<int64_t> lengths;    // per batch row: keys that count
  std::vector<int64_t> positions;  // per batch row: where its first query stands among the keys
  bool causal = false;
  int64_t left_window = -1, right_window = -1;
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> bias;  // empty: none
  std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)> fills;   // `fill` is the score
  double fill = kHidden;
  const ReferenceTensor* sinks = nullptr;
  bool zero_sink = false;
  bool nan_without_keys = false;

  int64_t batch() const { return q.dims[0]; }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t position = positions[static_cast<size_t>(b)] + i;
    return j < lengths[static_cast<size_t>(b)] && (!causal || j <= position) &&
           (left_window < 0 || position - j <= left_window) &&
           (right_window < 0 || j - position <= right_window);
  }
};

// The stages of the scores that ONNX's Attention can give out.
struct Scores {
  ReferenceTensor raw, capped, biased, probabilities;
};

std::vector<double> softmax_row(const std::vector<double>& logits, const std::vector<bool>& hidden,
                                std::optional<double> sink) {
  double largest = sink.value_or(kHidden);
  bool any = false;
  for (size_t j = 0; j < logits.size(); ++j) {
    if (hidden[j]) continue;
    any = true;
    if (!(logits[j] <= largest)) largest = logits[j];
  }
  std::vector<double> row(logits.size(), 0.0);
  if (!any) return row;
  double sum = sink ? std::exp(*sink - largest) : 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    if (!hidden[j]) sum += row[j] = std::exp(logits[j] - largest);
  }
  for (double& value : row) value /= sum;
  return row;
}

double rounded(double value, double scale, DType type, DType codes) {
  const double ratio = decode(type, encode(type, value / scale));
  return decode(codes, quantize(codes, ratio, 0)) * scale;
}

ReferenceTensor attend(const Problem& p, Scores* scores = nullptr) {
  const int64_t heads = p.q.dims[1], queries = p.q.dims[2], width = p.q.dims[3];
  const int64_t kv_heads = p.k.dims[1], keys = p.k.dims[2], value_width = p.v.dims[3];
  const int64_t group = heads / kv_heads;
  const double scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<double>(width));
  ReferenceTensor y = ReferenceTensor::zeros(p.q.dtype, {p.batch(), heads, queries, value_width});
  if (scores) {
    const ReferenceTensor blank =
        ReferenceTensor::zeros(p.q.dtype, {p.batch(), heads, queries, keys});
    *scores = {blank, blank, blank, blank};
  }
  for_each_index({p.batch(), heads, queries}, [&](const Index& index, int64_t row_at) {
    const int64_t b = index[0], h = index[1], i = index[2];
    const int64_t kv_at = (b * kv_heads + h / group) * keys;
    std::vector<double> logits;
    std::vector<bool> hidden;
    for (int64_t j = 0; j < keys; ++j) {
      double product = 0;
      for (int64_t d = 0; d < width; ++d) {
        product += p.q.number(row_at * width + d) * p.k.number((kv_at + j) * width + d);
      }
      const double raw = product * scale;
      const bool fills = p.fills && p.fills(b, h, i, j);
      const double own = p.softcap > 0 ? p.softcap * std::tanh(raw / p.softcap) : raw;
      const double capped = fills ? p.fill : own;
      const double added = p.bias && !fills ? p.bias(b, h, i, j) : 0;
      const double bias = p.sees(b, i, j) ? added : kHidden;
      hidden.push_back(bias == kHidden);
      logits.push_back(capped + bias);
      if (scores) {
        scores->raw.set(row_at * keys + j, raw);
        scores->capped.set(row_at * keys + j, capped);
        scores->biased.set(row_at * keys + j, capped + bias);
      }
    }
    std::optional<double> sink;
    if (p.sinks) sink = p.sinks->number(h);
    if (p.zero_sink) sink = 0;
    std::vector<double> weights = softmax_row(logits, hidden, sink);
    if (p.probability_scale > 0) {
      for (double& weight : weights)
        weight = rounded(weight, p.probability_scale, p.probability_type, p.probability_codes);
    }
    const bool sees_nothing = std::ranges::find(hidden, false) == hidden.end();
    const bool is_nan = p.nan_without_keys && keys > 0 && sees_nothing && !sink;
    for (int64_t d = 0; d < value_width; ++d) {
      double sum = is_nan ? std::numeric_limits<double>::quiet_NaN() : 0;
      for (int64_t j = 0; j < keys; ++j) {
        const double weight = weights[static_cast<size_t>(j)];
        // A hidden key may hold anything, NaN too.
        if (!hidden[static_cast<size_t>(j)])
          sum += weight * p.v.number((kv_at + j) * value_width + d);
      }
      y.set(row_at * value_width + d, sum);
    }
    if (!scores) return;
    for (int64_t j = 0; j < keys; ++j) {
      scores->probabilities.set(row_at * keys + j, weights[static_cast<size_t>(j)]);
    }
  });
  return y;
}

// Rows of a cache after this step: past's first past[b] rows, the new ones, zeros.
ReferenceTensor append_rows(const ReferenceTensor* past, const ReferenceTensor& fresh,
                            const std::vector<int64_t>& past_rows, int64_t rows) {
  const Dims dims{fresh.dims[0], fresh.dims[1], rows, fresh.dims[3]};
  ReferenceTensor y = ReferenceTensor::zeros(fresh.dtype, dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    const int64_t kept = past_rows[static_cast<size_t>(index[0])];
    Index from = index;
    if (index[2] < kept) {
      y.copy_element(flat, *past, flat_index(past->dims, from));
    } else if (index[2] < kept + fresh.dims[2]) {
      from[2] -= kept;
      y.copy_element(flat, fresh, flat_index(fresh.dims, from));
    }
  });
  return y;
}

// A cache of codes: what it stores, and how codes and numbers turn into each other. Scales are one,
// or one for each element of each head.
struct Codes {
  DType type = DType::kUndefined;  // i4: code + 8, two in a byte
  const ReferenceTensor* scale = nullptr;

  bool are_packed() const { return type == DType::kI4; }
  // Of element d of head h, where heads have `width` elements.
  double scale_of(int64_t h, int64_t d, int64_t width) const {
    return scale->number(scale->elements() == 1 ? 0 : h * width + d);
  }

  ReferenceTensor quantized(const ReferenceTensor& x) const {
    ReferenceTensor codes = ReferenceTensor::zeros(are_packed() ? DType::kU4 : type, x.dims);
    for_each_index(x.dims, [&](const Index& index, int64_t flat) {
      const double held = as_held(x.dtype, x.number(flat));
      const double scaled = as_held(DType::kF32, held / scale_of(index[1], index[3], x.dims[3]));
      const uint64_t code = quantize(codes.dtype, scaled, are_packed() ? 8 : 0);
      codes.set(flat, decode(codes.dtype, code));
    });
    return are_packed() ? packed(codes) : codes;
  }

  ReferenceTensor numbers(const ReferenceTensor& stored, DType dtype) const {
    Dims dims = stored.dims;
    if (are_packed()) dims[3] *= 2;
    ReferenceTensor x = ReferenceTensor::zeros(dtype, dims);
    for_each_index(dims, [&](const Index& index, int64_t flat) {
      double code = 0;
      if (are_packed()) {
        const int64_t byte = stored.integers.at(static_cast<size_t>(flat / 2));
        code = static_cast<double>(flat % 2 == 0 ? byte & 15 : byte >> 4) - 8;
      } else {
        code = stored.number(flat);
      }
      x.set(flat, code * scale_of(index[1], index[3], dims[3]));
    });
    return x;
  }

 private:
  static ReferenceTensor packed(const ReferenceTensor& nibbles) {
    Dims dims = nibbles.dims;
    dims[3] /= 2;
    ReferenceTensor bytes = ReferenceTensor::zeros(DType::kU8, dims);
    for (int64_t i = 0; i < bytes.elements(); ++i) {
      const auto at = static_cast<size_t>(2 * i);
      bytes.set_integer(i, nibbles.integers.at(at) | nibbles.integers.at(at + 1) << 4);
    }
    return bytes;
  }
};

// A cache after this step, as it is stored and as it counts.
struct Cache {
  ReferenceTensor present, numbers;
};
Cache append_to_cache(const ReferenceTensor* past, const ReferenceTensor& fresh, const Codes& codes,
                      const std::vector<int64_t>& past_rows, int64_t rows) {
  if (codes.type == DType::kUndefined) {
    const ReferenceTensor all = append_rows(past, fresh, past_rows, rows);
    return {all, all};
  }
  const ReferenceTensor all = append_rows(past, codes.quantized(fresh), past_rows, rows);
  return {all, codes.numbers(all, fresh.dtype)};
}

// A mask that broadcasts to [B, H, Sq, Sk]; keys beyond a shorter mask are hidden.
std::function<double(int64_t, int64_t, int64_t, int64_t)> mask_bias(const ReferenceTensor& mask) {
  return [&mask](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (!mask.dims.empty() && mask.dims.back() != 1 && j >= mask.dims.back()) return kHidden;
    const double value = mask.number(broadcast_index(mask.dims, {b, h, i, j}));
    return mask.dtype == DType::kBool ? (value != 0 ? 0.0 : kHidden) : value;
  };
}

std::vector<int64_t> repeated(int64_t batch, int64_t value) {
  return std::vector<int64_t>(static_cast<size_t>(batch), value);
}

const ReferenceTensor* optional_input(const Call& call, size_t index) {
  return call.has(index) ? &call.input(index) : nullptr;
}

ReferenceTensor head_range(const ReferenceTensor& x, int64_t first, int64_t count) {
  return remap(x, {x.dims[0], count, x.dims[2], x.dims[3]}, [&](const Index& index) {
    return flat_index(x.dims, {index[0], index[1] + first, index[2], index[3]});
  });
}

ReferenceTensor operand_heads(const ReferenceTensor& x, std::string_view text, int64_t heads) {
  const ir::HeadLayout layout = ir::HeadLayout::parse(text);
  const ReferenceTensor all = to_heads(x, layout.axes, heads);
  return layout.is_packed ? head_range(all, layout.first_head, heads) : all;
}

// x * weight / sqrt(mean(x²) + epsilon) over the last dim.
ReferenceTensor norm_heads(const ReferenceTensor& x, const ReferenceTensor* weight,
                           double epsilon) {
  if (weight == nullptr) return x;
  const int64_t width = x.dims.back();
  ReferenceTensor y = x;
  for (int64_t first = 0; first < x.elements(); first += width) {
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += x.number(first + d) * x.number(first + d);
    const double root = std::sqrt(sum / static_cast<double>(width) + epsilon);
    for (int64_t d = 0; d < width; ++d) {
      y.set(first + d, x.number(first + d) / root * weight->number(d));
    }
  }
  return y;
}

// The rules are those of graph_partitioner/ir/fusions.h.
Outputs fused_attention(const Call& call) {
  enum {
    kQ,
    kK,
    kV,
    kMask,
    kPastK,
    kPastV,
    kLengths,
    kSinks,
    kCos,
    kSin,
    kPositions,
    kQNorm,
    kKNorm,
    kKScale,
    kVScale
  };
  const ir::Attention node = ir::Attention::from(call.node);
  Problem p;
  p.q = operand_heads(call.input(kQ), node.q_layout, node.q_heads);
  ReferenceTensor k = operand_heads(call.input(kK), node.k_layout, node.kv_heads);
  ReferenceTensor v = operand_heads(call.input(kV), node.v_layout, node.kv_heads);
  const int64_t batch = p.q.dims[0], fresh = k.dims[2];
  const int64_t past = call.has(kPastK) ? call.input(kPastK).dims.at(2) : 0;
  std::vector<int64_t> past_rows = repeated(batch, past);
  p.lengths = repeated(batch, past + fresh);
  if (call.has(kLengths)) {
    p.lengths = call.input(kLengths).integers;
    for (size_t b = 0; b < past_rows.size() && call.has(kPastK); ++b) {
      past_rows[b] = std::max<int64_t>(0, p.lengths[b] - fresh);
    }
  }
  p.q = norm_heads(p.q, optional_input(call, kQNorm), node.norm_epsilon);
  k = norm_heads(k, optional_input(call, kKNorm), node.norm_epsilon);
  if (node.has_rotary()) {
    const ReferenceTensor &cos = call.input(kCos), &sin = call.input(kSin);
    const auto row = [&](int64_t b, int64_t s) {
      if (cos.dims.size() == 3) return (cos.dims[0] == 1 ? 0 : b) * fresh + s;
      if (!call.has(kPositions)) return past_rows[static_cast<size_t>(b)] + s;
      const ReferenceTensor& positions = call.input(kPositions);
      const int64_t at = (positions.dims[0] == 1 ? 0 : b) * fresh + s;
      return positions.integers.at(static_cast<size_t>(at));
    };
    p.q = rotate_heads(p.q, cos, sin, 2 * cos.dims.back(), node.interleaved, row);
    k = rotate_heads(k, cos, sin, 2 * cos.dims.back(), node.interleaved, row);
  }
  const Dims present = call.wants(1) ? call.required_output_dims(1) : Dims{};
  const int64_t rows = present.empty() ? past + fresh : present[2];
  const Codes k_codes{node.cache_type, optional_input(call, kKScale)};
  const Codes v_codes{node.cache_type, optional_input(call, kVScale)};
  const Cache keys = append_to_cache(optional_input(call, kPastK), k, k_codes, past_rows, rows);
  const Cache values = append_to_cache(optional_input(call, kPastV), v, v_codes, past_rows, rows);
  p.k = keys.numbers;
  p.v = values.numbers;
  p.scale = node.scale;
  p.softcap = node.softcap;
  p.nan_without_keys = node.nan_without_keys;
  p.probability_scale = node.probability_scale;
  p.probability_type = node.probability_type;
  p.probability_codes = node.probability_codes;
  p.causal = node.causal || node.causal_top_left;
  p.left_window = node.left_window;
  p.right_window = node.right_window;
  p.positions = past_rows;
  for (size_t b = 0; b < p.positions.size() && node.causal; ++b) {
    p.positions[b] = p.lengths[b] - p.q.dims[2];
  }
  if (call.has(kMask) && std::isfinite(node.mask_fill)) {
    const ReferenceTensor& mask = call.input(kMask);
    p.fill = node.mask_fill;
    p.fills = [&mask](int64_t b, int64_t h, int64_t i, int64_t j) {
      const double value = mask.number(broadcast_index(mask.dims, {b, h, i, j}));
      return mask.dtype == DType::kBool ? value == 0 : std::isnan(value);
    };
  }
  if (call.has(kMask)) p.bias = mask_bias(call.input(kMask));
  p.sinks = optional_input(call, kSinks);
  ReferenceTensor y = from_heads(attend(p), node.y_layout);
  y.dtype = call.output_type();  // f32 sums may be asked for over f16 operands
  return {std::move(y), keys.present, values.present};
}

// ONNX 23 to 25.
Outputs onnx_attention(const Call& call) {
  enum { kQ, kK, kV, kMask, kPastK, kPastV, kNonpad };
  const bool packed = call.input(kQ).dims.size() == 3;
  const char* layout = packed ? "bs(hd)" : "bhsd";
  const int64_t heads = call.node.integer("q_num_heads", 0);
  const int64_t kv_heads = call.node.integer("kv_num_heads", 0);
  Problem p;
  p.q = to_heads(call.input(kQ), layout, heads);
  const ReferenceTensor k = to_heads(call.input(kK), layout, kv_heads);
  const ReferenceTensor v = to_heads(call.input(kV), layout, kv_heads);
  const int64_t batch = p.q.dims[0];
  const int64_t past = call.has(kPastK) ? call.input(kPastK).dims.at(2) : 0;
  p.k = append_rows(optional_input(call, kPastK), k, repeated(batch, past), past + k.dims[2]);
  p.v = append_rows(optional_input(call, kPastV), v, repeated(batch, past), past + v.dims[2]);
  p.lengths = repeated(batch, p.k.dims[2]);
  p.positions = repeated(batch, past);
  if (call.has(kNonpad)) {
    p.lengths = call.input(kNonpad).integers;
    for (size_t b = 0; b < p.positions.size() && !call.has(kPastK); ++b) {
      p.positions[b] = p.lengths[b] - p.q.dims[2];
    }
  }
  p.scale = call.node.number("scale", 0);
  p.softcap = call.node.number("softcap", 0);
  p.causal = call.node.integer("is_causal", 0) != 0;
  p.left_window = call.node.integer("left_window_size", -1);
  p.right_window = call.node.integer("right_window_size", -1);
  if (call.has(kMask)) p.bias = mask_bias(call.input(kMask));
  Scores scores;
  ReferenceTensor y = from_heads(attend(p, call.wants(3) ? &scores : nullptr), layout);
  const std::array stages{&scores.raw, &scores.capped, &scores.biased, &scores.probabilities};
  const int64_t mode = call.node.integer("qk_matmul_output_mode", 0);
  return {std::move(y), p.k, p.v, *stages.at(static_cast<size_t>(mode))};
}

// How the caches of a GroupQueryAttention hold keys (input 12: their scale) or values (13).
Codes group_query_codes(const Call& call, const ReferenceTensor* past, size_t scale) {
  const char* attribute = scale == 12 ? "k_quant_type" : "v_quant_type";
  if (past == nullptr || call.node.text(attribute, "NONE") == "NONE") return {};
  return {past->dtype == DType::kU8 ? DType::kI4 : past->dtype, &call.input(scale)};
}

// The last `rows` of each row's keys, and zeros where there are fewer.
ReferenceTensor last_rows(const ReferenceTensor& cache, const std::vector<int64_t>& lengths,
                          int64_t rows) {
  return remap(cache, {cache.dims[0], cache.dims[1], rows, cache.dims[3]}, [&](const Index& index) {
    const int64_t lost = std::max<int64_t>(0, lengths[static_cast<size_t>(index[0])] - rows);
    return flat_index(cache.dims, {index[0], index[1], index[2] + lost, index[3]});
  });
}

// com.microsoft::GroupQueryAttention; always causal.
Outputs group_query_attention(const Call& call) {
  enum { kQ, kK, kV, kPastK, kPastV, kSeqlens, kTotal, kCos, kSin, kPositions, kBias, kSink };
  constexpr size_t kKScale = 12, kVScale = 13;
  const int64_t heads = call.node.integer("num_heads", 0),
                kv_heads = call.node.integer("kv_num_heads", 0);
  Problem p;
  ReferenceTensor k, v;
  if (call.has(kK)) {
    p.q = to_heads(call.input(kQ), "bs(hd)", heads);
    k = to_heads(call.input(kK), "bs(hd)", kv_heads);
    v = to_heads(call.input(kV), "bs(hd)", kv_heads);
  } else {
    const ReferenceTensor all = to_heads(call.input(kQ), "bs(hd)", heads + 2 * kv_heads);
    p.q = head_range(all, 0, heads);
    k = head_range(all, heads, kv_heads);
    v = head_range(all, heads + kv_heads, kv_heads);
  }
  const int64_t batch = p.q.dims[0], queries = p.q.dims[2];
  const auto total = static_cast<int64_t>(call.input(kTotal).number(0));
  const bool windowed = call.node.integer("sliding_window_cache", 0) != 0;
  const bool shared = call.has(kPastK) && k.dims[2] == 0;
  const bool first_prompt = queries == total && !windowed && !shared;
  const int64_t past = call.has(kPastK) ? call.input(kPastK).dims.at(2) : 0;
  const int64_t rows = windowed ? past + queries : shared ? past : std::max(past, total);
  std::vector<int64_t> past_rows = repeated(batch, 0), origins = past_rows;
  for (size_t b = 0; b < past_rows.size(); ++b) {
    const int64_t length = call.input(kSeqlens).integers.at(b) + 1;
    p.lengths.push_back(windowed || shared ? std::min(length, rows) : length);
    if (!first_prompt) past_rows[b] = p.lengths[b] - queries;
    if (!first_prompt) origins[b] = length - queries;
    if (windowed || shared) past_rows[b] = std::max<int64_t>(0, past_rows[b]);
    if (windowed || shared) origins[b] = std::max<int64_t>(0, origins[b]);
  }
  if (call.node.integer("do_rotary", 0) != 0) {
    const auto row = [&](int64_t b, int64_t s) {
      if (call.has(kPositions))
        return call.input(kPositions).integers.at(static_cast<size_t>(b * queries + s));
      return origins[static_cast<size_t>(b)] + s;
    };
    const ReferenceTensor &cos = call.input(kCos), &sin = call.input(kSin);
    const bool interleaved = call.node.integer("rotary_interleaved", 0) != 0;
    p.q = rotate_heads(p.q, cos, sin, 2 * cos.dims.back(), interleaved, row);
    k = rotate_heads(k, cos, sin, 2 * cos.dims.back(), interleaved, row);
  }
  const ReferenceTensor *past_k = optional_input(call, kPastK),
                        *past_v = optional_input(call, kPastV);
  const std::vector<int64_t>& held = shared ? p.lengths : past_rows;
  const Cache keys =
      append_to_cache(past_k, k, group_query_codes(call, past_k, kKScale), held, rows);
  const Cache values =
      append_to_cache(past_v, v, group_query_codes(call, past_v, kVScale), held, rows);
  p.k = keys.numbers;
  p.v = values.numbers;
  p.positions = past_rows;
  p.causal = true;
  p.scale = call.node.number("scale", 0);
  p.softcap = call.node.number("softcap", 0);
  // The window counts the query's own key: w keys are seen in all.
  const int64_t window = call.node.integer("local_window_size", -1);
  p.left_window = window > 0 ? window - 1 : -1;
  if (call.has(kBias)) p.bias = mask_bias(call.input(kBias));
  p.sinks = optional_input(call, kSink);
  p.zero_sink = call.node.integer("smooth_softmax", 0) == 1 && !p.sinks;
  ReferenceTensor y = from_heads(attend(p), "bs(hd)");
  if (!windowed) return {std::move(y), keys.present, values.present};
  return {std::move(y), last_rows(keys.present, p.lengths, past),
          last_rows(values.present, p.lengths, past)};
}

ReferenceTensor plus_bias(const ReferenceTensor& x, const ReferenceTensor& bias, int64_t offset) {
  ReferenceTensor y = x;
  for (int64_t i = 0; i < x.elements(); ++i)
    y.set(i, x.number(i) + bias.number(offset + i % x.dims[2]));
  return y;
}

// com.microsoft::MultiHeadAttention with separate q, k, v: k and v as [B, S, H*D] or [B, H, S, D].
Outputs multi_head_attention(const Call& call) {
  enum { kQ, kK, kV, kProjectionBias, kPadding, kBias, kPastK, kPastV };
  const int64_t heads = call.node.integer("num_heads", 0);
  if (call.input(kQ).dims.size() != 3 || !call.has(kK) || !call.has(kV)) {
    throw UserError("the reference knows MultiHeadAttention with separate q, k and v only");
  }
  ReferenceTensor q = call.input(kQ), k = call.input(kK), v = call.input(kV);
  if (call.has(kProjectionBias)) {
    const ReferenceTensor& bias = call.input(kProjectionBias);
    q = plus_bias(q, bias, 0);
    if (k.dims.size() == 3) k = plus_bias(k, bias, q.dims[2]);
    if (v.dims.size() == 3) v = plus_bias(v, bias, 2 * q.dims[2]);
  }
  Problem p;
  p.q = to_heads(q, "bs(hd)", heads);
  const ReferenceTensor fresh_k = k.dims.size() == 3 ? to_heads(k, "bs(hd)", heads) : k;
  const ReferenceTensor fresh_v = v.dims.size() == 3 ? to_heads(v, "bs(hd)", heads) : v;
  const int64_t batch = p.q.dims[0], past = call.has(kPastK) ? call.input(kPastK).dims.at(2) : 0;
  const int64_t rows = past + fresh_k.dims[2];
  p.k = append_rows(optional_input(call, kPastK), fresh_k, repeated(batch, past), rows);
  p.v = append_rows(optional_input(call, kPastV), fresh_v, repeated(batch, past), rows);
  p.lengths = repeated(batch, rows);
  p.positions = repeated(batch, past);
  p.causal = call.node.integer("unidirectional", 0) != 0;
  p.scale = call.node.number("scale", 0);
  const double filter = call.node.number("mask_filter_value", -10000.0f);
  const ReferenceTensor* padding = optional_input(call, kPadding);
  if (padding && padding->elements() != batch && padding->dims.size() != 2) {
    throw UserError("the reference knows key_padding_mask of [B] and [B, S] only");
  }
  const auto extra = call.has(kBias) ? mask_bias(call.input(kBias)) : nullptr;
  p.bias = [=](int64_t b, int64_t h, int64_t i, int64_t j) {
    double value = extra ? extra(b, h, i, j) : 0;
    if (padding && padding->dims.size() == 1 && j >= padding->integers[static_cast<size_t>(b)])
      value += filter;
    if (padding && padding->dims.size() == 2 && padding->number(b * padding->dims[1] + j) == 0)
      value += filter;
    return value;
  };
  return {from_heads(attend(p), "bs(hd)"), p.k, p.v};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"tenon::Attention", fused_attention},
    {"Attention", onnx_attention},
    {"com.microsoft::GroupQueryAttention", group_query_attention},
    {"com.microsoft::MultiHeadAttention", multi_head_attention},
});

}  // namespace

std::span<const OpEntry> attention_ops() { return kOps; }

}  // namespace tenon::kernels::reference
