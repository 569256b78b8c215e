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
#include "kernels/reference/kv_cache.h"
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

// A query of a head, and its number among all of them.
struct Query {
  int64_t b, h, i, flat;
};

struct Logits {
  std::vector<double> values;
  std::vector<bool> hidden;
};

Logits logits_of(const Problem& p, const Query& at, int64_t kv_at, Scores* scores) {
  const int64_t width = p.q.dims[3], keys = p.k.dims[2];
  const double scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<double>(width));
  Logits out;
  for (int64_t j = 0; j < keys; ++j) {
    double product = 0;
    for (int64_t d = 0; d < width; ++d) {
      product += p.q.number(at.flat * width + d) * p.k.number((kv_at + j) * width + d);
    }
    const double raw = product * scale;
    const bool fills = p.fills && p.fills(at.b, at.h, at.i, j);
    const double own = p.softcap > 0 ? p.softcap * std::tanh(raw / p.softcap) : raw;
    const double capped = fills ? p.fill : own;
    const double added = p.bias && !fills ? p.bias(at.b, at.h, at.i, j) : 0;
    const double bias = p.sees(at.b, at.i, j) ? added : kHidden;
    out.hidden.push_back(bias == kHidden);
    out.values.push_back(capped + bias);
    if (scores) {
      scores->raw.set(at.flat * keys + j, raw);
      scores->capped.set(at.flat * keys + j, capped);
      scores->biased.set(at.flat * keys + j, capped + bias);
    }
  }
  return out;
}

// The query's row of y; answers the probabilities.
std::vector<double> attend_row(const Problem& p, const Query& at, int64_t kv_at,
                               const Logits& logits, ReferenceTensor& y) {
  const int64_t keys = p.k.dims[2], width = p.v.dims[3];
  std::optional<double> sink;
  if (p.sinks) sink = p.sinks->number(at.h);
  if (p.zero_sink) sink = 0;
  std::vector<double> weights = softmax_row(logits.values, logits.hidden, sink);
  if (p.probability_scale > 0) {
    for (double& weight : weights)
      weight = rounded(weight, p.probability_scale, p.probability_type, p.probability_codes);
  }
  const bool sees_nothing = std::ranges::find(logits.hidden, false) == logits.hidden.end();
  const bool is_nan = p.nan_without_keys && keys > 0 && sees_nothing && !sink;
  for (int64_t d = 0; d < width; ++d) {
    double sum = is_nan ? std::numeric_limits<double>::quiet_NaN() : 0;
    for (int64_t j = 0; j < keys; ++j) {
      const double weight = weights[static_cast<size_t>(j)];
      // A hidden key may hold anything, NaN too.
      if (!logits.hidden[static_cast<size_t>(j)]) {
        sum += weight * p.v.number((kv_at + j) * width + d);
      }
    }
    y.set(at.flat * width + d, sum);
  }
  return weights;
}

ReferenceTensor attend(const Problem& p, Scores* scores = nullptr) {
  const int64_t heads = p.q.dims[1], queries = p.q.dims[2];
  const int64_t kv_heads = p.k.dims[1], keys = p.k.dims[2];
  const int64_t group = heads / kv_heads;
  ReferenceTensor y = ReferenceTensor::zeros(p.q.dtype, {p.batch(), heads, queries, p.v.dims[3]});
  if (scores) {
    const ReferenceTensor blank =
        ReferenceTensor::zeros(p.q.dtype, {p.batch(), heads, queries, keys});
    *scores = {blank, blank, blank, blank};
  }
  for_each_index({p.batch(), heads, queries}, [&](const Index& index, int64_t flat) {
    const Query at{index[0], index[1], index[2], flat};
    const int64_t kv_at = (at.b * kv_heads + at.h / group) * keys;
    const Logits logits = logits_of(p, at, kv_at, scores);
    const std::vector<double> weights = attend_row(p, at, kv_at, logits, y);
    if (!scores) return;
    for (int64_t j = 0; j < keys; ++j) {
      scores->probabilities.set(flat * keys + j, weights[static_cast<size_t>(j)]);
    }
  });
  return y;
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
class FusedAttention {
 public:
  explicit FusedAttention(const Call& call) : call_(call), node_(ir::Attention::from(call.node)) {}

  Outputs run() {
    p_.q = operand_heads(call_.input(kQ), node_.q_layout, node_.q_heads);
    k_ = operand_heads(call_.input(kK), node_.k_layout, node_.kv_heads);
    v_ = operand_heads(call_.input(kV), node_.v_layout, node_.kv_heads);
    count_rows();
    p_.q = norm_heads(p_.q, optional_input(call_, kQNorm), node_.norm_epsilon);
    k_ = norm_heads(k_, optional_input(call_, kKNorm), node_.norm_epsilon);
    if (node_.has_rotary()) rotate();
    const Cache keys = append(kPastK, k_, kKScale), values = append(kPastV, v_, kVScale);
    p_.k = keys.numbers;
    p_.v = values.numbers;
    copy_attributes();
    if (call_.has(kMask)) mask();
    p_.sinks = optional_input(call_, kSinks);
    ReferenceTensor y = from_heads(attend(p_), node_.y_layout);
    y.dtype = call_.output_type();  // f32 sums may be asked for over f16 operands
    return {std::move(y), keys.present, values.present};
  }

 private:
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

  int64_t fresh() const { return k_.dims[2]; }
  int64_t past() const { return call_.has(kPastK) ? call_.input(kPastK).dims.at(2) : 0; }

  void count_rows() {
    past_rows_ = repeated(p_.batch(), past());
    p_.lengths = repeated(p_.batch(), past() + fresh());
    if (!call_.has(kLengths)) return;
    p_.lengths = call_.input(kLengths).integers;
    for (size_t b = 0; b < past_rows_.size() && call_.has(kPastK); ++b) {
      past_rows_[b] = std::max<int64_t>(0, p_.lengths[b] - fresh());
    }
  }

  void rotate() {
    const ReferenceTensor &cos = call_.input(kCos), &sin = call_.input(kSin);
    const auto row = [&](int64_t b, int64_t s) {
      if (cos.dims.size() == 3) return (cos.dims[0] == 1 ? 0 : b) * fresh() + s;
      if (!call_.has(kPositions)) return past_rows_[static_cast<size_t>(b)] + s;
      const ReferenceTensor& positions = call_.input(kPositions);
      const int64_t at = (positions.dims[0] == 1 ? 0 : b) * fresh() + s;
      return positions.integers.at(static_cast<size_t>(at));
    };
    p_.q = rotate_heads(p_.q, cos, sin, 2 * cos.dims.back(), node_.interleaved, row);
    k_ = rotate_heads(k_, cos, sin, 2 * cos.dims.back(), node_.interleaved, row);
  }

  Cache append(size_t past_input, const ReferenceTensor& x, size_t scale) const {
    const Dims present = call_.wants(1) ? call_.required_output_dims(1) : Dims{};
    const int64_t rows = present.empty() ? past() + fresh() : present[2];
    const Codes codes{node_.cache_type, optional_input(call_, scale)};
    return append_to_cache(optional_input(call_, past_input), x, codes, past_rows_, rows);
  }

  void copy_attributes() {
    p_.scale = node_.scale;
    p_.softcap = node_.softcap;
    p_.nan_without_keys = node_.nan_without_keys;
    p_.probability_scale = node_.probability_scale;
    p_.probability_type = node_.probability_type;
    p_.probability_codes = node_.probability_codes;
    p_.causal = node_.causal || node_.causal_top_left;
    p_.left_window = node_.left_window;
    p_.right_window = node_.right_window;
    p_.positions = past_rows_;
    for (size_t b = 0; b < p_.positions.size() && node_.causal; ++b) {
      p_.positions[b] = p_.lengths[b] - p_.q.dims[2];
    }
  }

  void mask() {
    const ReferenceTensor& mask = call_.input(kMask);
    p_.bias = mask_bias(mask);
    if (!std::isfinite(node_.mask_fill)) return;
    p_.fill = node_.mask_fill;
    p_.fills = [&mask](int64_t b, int64_t h, int64_t i, int64_t j) {
      const double value = mask.number(broadcast_index(mask.dims, {b, h, i, j}));
      return mask.dtype == DType::kBool ? value == 0 : std::isnan(value);
    };
  }

  const Call& call_;
  const ir::Attention node_;
  Problem p_;
  ReferenceTensor k_, v_;  // new rows
  std::vector<int64_t> past_rows_;
};

Outputs fused_attention(const Call& call) { return FusedAttention(call).run(); }

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

// com.microsoft::GroupQueryAttention; always causal.
class GroupQueryAttention {
 public:
  explicit GroupQueryAttention(const Call& call) : call_(call) {}

  Outputs run() {
    split_heads();
    count_rows();
    if (call_.node.integer("do_rotary", 0) != 0) rotate();
    const Cache keys = append(kPastK, k_, kKScale), values = append(kPastV, v_, kVScale);
    p_.k = keys.numbers;
    p_.v = values.numbers;
    p_.positions = past_rows_;
    p_.causal = true;
    p_.scale = call_.node.number("scale", 0);
    p_.softcap = call_.node.number("softcap", 0);
    // The window counts the query's own key: w keys are seen in all.
    const int64_t window = call_.node.integer("local_window_size", -1);
    p_.left_window = window > 0 ? window - 1 : -1;
    if (call_.has(kBias)) p_.bias = mask_bias(call_.input(kBias));
    p_.sinks = optional_input(call_, kSink);
    p_.zero_sink = call_.node.integer("smooth_softmax", 0) == 1 && !p_.sinks;
    ReferenceTensor y = from_heads(attend(p_), "bs(hd)");
    if (!is_windowed()) return {std::move(y), keys.present, values.present};
    return {std::move(y), last_rows(keys.present, p_.lengths, past()),
            last_rows(values.present, p_.lengths, past())};
  }

 private:
  enum { kQ, kK, kV, kPastK, kPastV, kSeqlens, kTotal, kCos, kSin, kPositions, kBias, kSink };
  static constexpr size_t kKScale = 12, kVScale = 13;

  int64_t queries() const { return p_.q.dims[2]; }
  int64_t past() const { return call_.has(kPastK) ? call_.input(kPastK).dims.at(2) : 0; }
  bool is_windowed() const { return call_.node.integer("sliding_window_cache", 0) != 0; }
  // The cache is another node's, which has put this step's rows there.
  bool is_shared() const { return call_.has(kPastK) && k_.dims[2] == 0; }

  void split_heads() {
    const int64_t heads = call_.node.integer("num_heads", 0),
                  kv_heads = call_.node.integer("kv_num_heads", 0);
    if (call_.has(kK)) {
      p_.q = to_heads(call_.input(kQ), "bs(hd)", heads);
      k_ = to_heads(call_.input(kK), "bs(hd)", kv_heads);
      v_ = to_heads(call_.input(kV), "bs(hd)", kv_heads);
      return;
    }
    const ReferenceTensor all = to_heads(call_.input(kQ), "bs(hd)", heads + 2 * kv_heads);
    p_.q = head_range(all, 0, heads);
    k_ = head_range(all, heads, kv_heads);
    v_ = head_range(all, heads + kv_heads, kv_heads);
  }

  void count_rows() {
    const auto total = static_cast<int64_t>(call_.input(kTotal).number(0));
    const bool windowed = is_windowed(), shared = is_shared();
    const bool first_prompt = queries() == total && !windowed && !shared;
    rows_ = windowed ? past() + queries() : shared ? past() : std::max(past(), total);
    past_rows_ = origins_ = repeated(p_.batch(), 0);
    for (size_t b = 0; b < past_rows_.size(); ++b) {
      const int64_t length = call_.input(kSeqlens).integers.at(b) + 1;
      p_.lengths.push_back(windowed || shared ? std::min(length, rows_) : length);
      if (!first_prompt) past_rows_[b] = p_.lengths[b] - queries();
      if (!first_prompt) origins_[b] = length - queries();
      if (windowed || shared) past_rows_[b] = std::max<int64_t>(0, past_rows_[b]);
      if (windowed || shared) origins_[b] = std::max<int64_t>(0, origins_[b]);
    }
  }

  void rotate() {
    const auto row = [&](int64_t b, int64_t s) {
      if (call_.has(kPositions))
        return call_.input(kPositions).integers.at(static_cast<size_t>(b * queries() + s));
      return origins_[static_cast<size_t>(b)] + s;
    };
    const ReferenceTensor &cos = call_.input(kCos), &sin = call_.input(kSin);
    const bool interleaved = call_.node.integer("rotary_interleaved", 0) != 0;
    p_.q = rotate_heads(p_.q, cos, sin, 2 * cos.dims.back(), interleaved, row);
    k_ = rotate_heads(k_, cos, sin, 2 * cos.dims.back(), interleaved, row);
  }

  Cache append(size_t past_input, const ReferenceTensor& x, size_t scale) const {
    const ReferenceTensor* past = optional_input(call_, past_input);
    const Codes codes = group_query_codes(call_, past, scale);
    return append_to_cache(past, x, codes, is_shared() ? p_.lengths : past_rows_, rows_);
  }

  const Call& call_;
  Problem p_;
  ReferenceTensor k_, v_;  // new rows
  int64_t rows_ = 0;       // of the caches, after this step
  std::vector<int64_t> past_rows_, origins_;
};

Outputs group_query_attention(const Call& call) { return GroupQueryAttention(call).run(); }

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
