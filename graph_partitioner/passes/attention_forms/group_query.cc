// com.microsoft::GroupQueryAttention, the attention of decoders.
//
//   q, k, v ──[RMS norm of heads]──[rotary at past + i]── Attention(past, seqlens_k + 1 keys)
//
// Norm and rotary are tenon::Attention's own, but where new keys leave the node and no past is
// there to put them behind: then they are written out.
//
// Keys land behind each row's own past; the cache is as long as past's buffer or the longest row.
// q may hold k and v too. A windowed cache (sliding_window_cache) keeps its length: keys land
// behind its rows in a longer one, whose last rows it becomes. New keys of no token mean that the
// cache is another node's and holds all keys already. Score outputs stay as they are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/support.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/attention_forms/rotary.h"

namespace tenon::attention_forms {
namespace {

using ir::kNoValue;
using ir::ValueId;

enum Input {
  kQ,
  kK,
  kV,
  kPastK,
  kPastV,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSinks,
  kScaleK,
  kScaleV,
  kNormQ,
  kNormK,
};

struct Form {
  int64_t q_heads = 0, kv_heads = 0, head_size = 0;
  Dim batch, sequence, total;
  Dim cache;                        // length of present, or of what a windowed one is cut from
  DType codes = DType::kUndefined;  // of a quantised cache
  bool windowed = false;            // the cache keeps its length
  bool shared = false;              // the cache has all keys, none is new
};

// What the operator's definition forbids, as the CUDA provider enforces it.
Support has_legal_attributes(const ir::Node& node) {
  const int64_t window = node.integer("local_window_size", -1), causal = node.integer("causal", 1);
  if (causal != 0 && causal != 1) return Support::no(fmt::format("causal is {}", causal));
  if (window != -1 && (window <= 0 || window > std::numeric_limits<int32_t>::max())) {
    return Support::no(fmt::format("local_window_size is {}, not -1 or positive", window));
  }
  if (causal == 0 && window != -1)
    return Support::no("local_window_size with causal=0 is not supported");
  const float epsilon = node.number("qk_norm_epsilon", 1e-6f);
  if (!std::isfinite(epsilon) || epsilon <= 0) {
    return Support::no(fmt::format("qk_norm_epsilon is {}", epsilon));
  }
  const int64_t windowed = node.integer("sliding_window_cache", 0);
  if (windowed != 0 && (windowed != 1 || window < 0)) {
    return Support::no(
        fmt::format("sliding_window_cache is {}, local_window_size {}", windowed, window));
  }
  const int64_t bits = node.integer("kv_cache_bit_width", 0);
  if (bits != 0 && bits != 4 && bits != 8) {
    return Support::no(fmt::format("kv_cache_bit_width is {}", bits));
  }
  return Support::yes();
}

Support is_ours(Rewrite& r) {
  const ir::Node& node = r.node();
  if (Support legal = has_legal_attributes(node); !legal) return legal;
  if (node.integer("sliding_window_cache", 0) != 0 && !r.has_input(kPastK)) {
    return Support::no("sliding_window_cache without a past is not supported");
  }
  if (r.is_used(3)) return Support::no("output_qk is not supported");
  if (!r.has_input(kLengths)) return Support::no("seqlens_k is missing");
  if (r.has_input(kPastK) != r.has_input(kPastV) || r.has_input(kK) != r.has_input(kV) ||
      r.has_input(kNormQ) != r.has_input(kNormK)) {
    return Support::no("key without value, or a QK norm of only one of q and k");
  }
  return Support::yes();
}

// Keys of all rows: as many as shapes tell, or else as the model says that present has rows, so
// that the total, whatever its value, is no more.
std::optional<Dim> total_keys(Rewrite& r) {
  const auto total = r.emit.known_elements(r.input(kTotal));
  if (total && total->size() == 1 && r.is_bound(total->front())) return total->front();
  const auto rows = [&](size_t present) -> std::optional<Dim> {
    const auto shape = r.is_used(present) ? r.shape(r.output(present)) : std::nullopt;
    return shape && shape->size() == 4 ? std::optional((*shape)[2]) : std::nullopt;
  };
  const auto keys = rows(1), values = rows(2);
  if (!keys || !values || !(*keys == *values)) return std::nullopt;
  return keys;
}

Support read_new_keys(Rewrite& r, Form& form) {
  const auto keys = r.shape(r.input(kK));
  form.shared = keys && keys->size() == 3 && (*keys)[1].is(0) && r.has_input(kPastK);
  for (const Input input : {kK, kV}) {
    const auto shape = r.shape(r.input(input));
    if (!shape || shape->size() != 3 || !((*shape)[0] == form.batch) ||
        !((*shape)[1] == (form.shared ? Dim(0) : form.sequence))) {
      return Support::no("key and query sequence lengths differ");
    }
    const int64_t width = form.kv_heads * form.head_size;
    if (!shape->back().is(width)) {
      return Support::no(fmt::format("key or value hidden size is {}, {} heads of {} are {}",
                                     shape->back().text(), form.kv_heads, form.head_size, width));
    }
  }
  return Support::yes();
}

Support read_sizes(Rewrite& r, Form& form) {
  form.q_heads = r.node().integer("num_heads", 0);
  form.kv_heads = r.node().integer("kv_num_heads", 0);
  const auto q = r.shape(r.input(kQ));
  if (!q || q->size() != 3 || !q->back().is_constant()) {
    return Support::no("the query's hidden size is not static");
  }
  if (form.q_heads <= 0 || form.kv_heads <= 0 || form.q_heads % form.kv_heads != 0) {
    return Support::no(fmt::format("{} query heads are not a multiple of {} KV heads", form.q_heads,
                                   form.kv_heads));
  }
  const int64_t parts = r.has_input(kK) ? form.q_heads : form.q_heads + 2 * form.kv_heads;
  if (q->back().value() <= 0 || q->back().value() % parts != 0) {
    return Support::no(
        fmt::format("hidden size {} does not divide into {} heads", q->back().value(), parts));
  }
  form.head_size = q->back().value() / parts;
  form.batch = (*q)[0];
  form.sequence = (*q)[1];
  return r.has_input(kK) ? read_new_keys(r, form) : Support::yes();
}

// Caches whose length does not follow from the total.
Support read_fixed_cache(Rewrite& r, Form& form) {
  const auto past = r.shape(r.input(kPastK));
  if (!past || past->size() != 4) {
    return Support::no("the KV cache's rank is not known");
  }
  if (r.has_input(kBias))
    return Support::no("attention_bias with a sliding-window or shared KV cache is not supported");
  if (form.shared && form.codes != DType::kUndefined) {
    return Support::no("a quantised KV cache shared with another node is not supported");
  }
  if (form.shared && form.windowed)
    return Support::no("a sliding-window KV cache without new keys is not supported");
  form.cache = form.total = form.shared ? (*past)[2] : (*past)[2] + form.sequence;
  return Support::yes();
}

Support read_cache(Rewrite& r, Form& form) {
  if (form.windowed || form.shared) return read_fixed_cache(r, form);
  if (r.has_input(kBias) && !r.shape(r.input(kBias))) {
    return Support::no("attention_bias has no known shape");
  }
  const bool needs_total = r.has_input(kPastK) || r.has_input(kBias);
  const std::optional<Dim> total = needs_total ? total_keys(r) : form.sequence;
  if (!total) {
    return Support::no(
        "total_sequence_length does not follow from any shape, and the KV cache's length is not "
        "declared");
  }
  form.cache = form.total = *total;
  if (!r.has_input(kPastK)) return Support::yes();
  const auto past = r.shape(r.input(kPastK));
  if (!past || past->size() != 4) {
    return Support::no("the KV cache's rank is not known");
  }
  const DType own = r.dtype(r.input(kQ)), cached = r.dtype(r.input(kPastK));
  if (form.codes == DType::kUndefined && own != cached) {
    return Support::no(fmt::format("the KV cache is {}, the query is {}", name(cached), name(own)));
  }
  form.cache = max((*past)[2], form.total);
  return Support::yes();
}

// How a cache holds keys that are not numbers of their own type.
struct CodedCache {
  DType stored;
  int64_t bits;
  DType codes;
};
constexpr CodedCache kCodedCaches[] = {
    {DType::kI8, 8, DType::kI8},
    {DType::kF8E4M3FN, 8, DType::kF8E4M3FN},
    {DType::kU8, 4, DType::kI4},
};

Support read_scale(Rewrite& r, const Form& form, Input scale, const char* attribute) {
  const std::string kind = r.node().text(attribute, "NONE");
  const bool per_channel = kind == "PER_CHANNEL";
  if (!per_channel && kind != "PER_TENSOR") {
    return Support::no(
        fmt::format("a quantised KV cache with {}={} is not supported", attribute, kind));
  }
  const auto shape = r.shape(r.input(scale));
  const int64_t wanted = per_channel ? form.kv_heads * form.head_size : 1;
  if (!shape || !element_count(*shape).is(wanted) || r.dtype(r.input(scale)) != DType::kF32) {
    return Support::no(
        fmt::format("{}={} needs a float32 scale of {} element(s)", attribute, kind, wanted));
  }
  return Support::yes();
}

Support read_codes(Rewrite& r, Form& form) {
  const bool quantised = r.node().text("k_quant_type", "NONE") != "NONE" ||
                         r.node().text("v_quant_type", "NONE") != "NONE";
  if (!quantised) {
    const bool scaled = r.has_input(kScaleK) || r.has_input(kScaleV);
    return scaled ? Support::no("k_scale or v_scale is given, but the KV cache is not quantised")
                  : Support::yes();
  }
  if (!r.has_input(kPastK) || !r.has_input(kScaleK) || !r.has_input(kScaleV)) {
    return Support::no("a quantised KV cache needs past_key, past_value, k_scale and v_scale");
  }
  const DType stored = r.dtype(r.input(kPastK));
  const int64_t bits = r.node().integer("kv_cache_bit_width", 8);
  const auto* const known = std::ranges::find_if(kCodedCaches, [&](const CodedCache& cache) {
    return cache.stored == stored && cache.bits == (bits == 4 ? 4 : 8);
  });
  if (known == std::end(kCodedCaches) || r.dtype(r.input(kPastV)) != stored) {
    return Support::no(
        fmt::format("a KV cache of {} bits stored as {} is not supported", bits, name(stored)));
  }
  if (known->codes == DType::kI4 && form.head_size % 2 != 0) {
    return Support::no(fmt::format("head_size {} does not fill whole bytes", form.head_size));
  }
  form.codes = known->codes;
  if (Support answer = read_scale(r, form, kScaleK, "k_quant_type"); !answer) return answer;
  return read_scale(r, form, kScaleV, "v_quant_type");
}

Support read_form(Rewrite& r, Form& form) {
  if (Support answer = is_ours(r); !answer) return answer;
  form.windowed = r.node().integer("sliding_window_cache", 0) != 0;
  if (Support answer = read_sizes(r, form); !answer) return answer;
  if (Support answer = read_codes(r, form); !answer) return answer;
  return read_cache(r, form);
}

struct Tensors {
  ValueId q, k, v;  // [B, S, H, D]
};

Tensors read_tensors(Rewrite& r, const Form& form) {
  const auto heads = [&](ValueId x, int64_t count) {
    return r.emit.reshape(x, {form.batch, form.sequence, count, form.head_size});
  };
  if (r.has_input(kK)) {
    return {heads(r.input(kQ), form.q_heads), heads(r.input(kK), form.kv_heads),
            heads(r.input(kV), form.kv_heads)};
  }
  const ValueId all = heads(r.input(kQ), form.q_heads + 2 * form.kv_heads);
  return {slice_axis(r, all, 2, 0, form.q_heads),
          slice_axis(r, all, 2, form.q_heads, form.kv_heads),
          slice_axis(r, all, 2, form.q_heads + form.kv_heads, form.kv_heads)};
}

// The operands of norm and rotary.
Support read_new_heads(Rewrite& r, const Form& form, ir::Attention& attention) {
  attention.q_norm = r.input(kNormQ);
  attention.k_norm = r.input(kNormK);
  attention.norm_epsilon = r.node().number("qk_norm_epsilon", 1e-6f);
  if (r.node().integer("do_rotary", 0) == 0) return Support::yes();
  const auto cos = r.shape(r.input(kCos)), sin = r.shape(r.input(kSin));
  if (!cos || !sin || cos->size() != 2 || *cos != *sin || !(*cos)[1].is_constant() ||
      2 * (*cos)[1].value() > form.head_size) {
    return Support::no("cos_cache and sin_cache do not match head_size");
  }
  if (r.has_input(kPositions)) {
    const auto positions = r.shape(r.input(kPositions));
    if (!positions || positions->size() != 2 || !((*positions)[1] == form.sequence)) {
      return Support::no("position_ids are not [batch, sequence]");
    }
  }
  attention.cos = r.input(kCos);
  attention.sin = r.input(kSin);
  attention.positions = r.input(kPositions);
  attention.interleaved = r.node().integer("rotary_interleaved", 0) != 0;
  return Support::yes();
}

// Norm and rotary in front of an attention without a past.
void write_out_new_heads(Rewrite& r, const Form& form, ir::Attention& attention) {
  attention.q = normed_heads(r, attention.q, attention.q_norm, attention.norm_epsilon);
  attention.k = normed_heads(r, attention.k, attention.k_norm, attention.norm_epsilon);
  attention.q_norm = attention.k_norm = kNoValue;
  attention.norm_epsilon = ir::Attention().norm_epsilon;
  if (!attention.has_rotary()) return;
  const ValueId positions = attention.positions != kNoValue
                                ? attention.positions
                                : r.emit.position({1, form.sequence}, 1);
  const int64_t width = 2 * r.graph().value(attention.cos).shape->back().value();
  const Rotation rotation =
      rotation_at(r, attention.cos, attention.sin, positions, width, attention.interleaved);
  attention.q = rotate(r, attention.q, rotation, false);
  attention.k = rotate(r, attention.k, rotation, false);
  attention.cos = attention.sin = attention.positions = kNoValue;
  attention.interleaved = false;
}

// One extra logit per head: given, or 0 for a smooth softmax.
ValueId sinks_of(Rewrite& r, const Form& form) {
  if (r.has_input(kSinks)) return r.input(kSinks);
  if (r.node().integer("smooth_softmax", 0) != 1) return kNoValue;
  const std::vector<double> zeros(form.q_heads, 0.0);
  return r.graph().add_constant("sinks",
                                ir::Tensor::of(r.dtype(r.input(kQ)), {form.q_heads}, zeros));
}

void write_presents(Rewrite& r, const Form& form) {
  const int64_t width = form.codes == DType::kI4 ? form.head_size / 2 : form.head_size;
  const Shape shape = {form.batch, form.kv_heads, form.cache, width};
  r.set_shape(1, shape);
  r.set_shape(2, shape);
}

// Without a past the presents are the new keys and values.
bool hand_out_new_keys(Rewrite& r, const ir::Attention& attention) {
  if (r.is_used(1) && !r.replace(1, r.emit.transpose(attention.k, {0, 2, 1, 3}))) return false;
  return !r.is_used(2) || r.replace(2, r.emit.transpose(attention.v, {0, 2, 1, 3}));
}

// Keys of each row: seqlens_k + 1. Shapes tell how long the caches are, so nothing else reads
// total_sequence_length; where the caller brings one that is out of range, or contradicts the
// length that the model declares, no row has a length, which fails the Run.
ValueId lengths_of(Rewrite& r, const Form& form) {
  const ValueId counts = r.emit.reshape(r.input(kLengths), {form.batch});
  const ValueId lengths = r.emit.binary("Add", counts, r.emit.scalar(r.dtype(counts), 1.0));
  const ValueId total = r.input(kTotal);
  if (total == kNoValue || !r.graph().is_input(total) || !r.has_input(kPastK)) return lengths;
  if (form.windowed) return lengths;  // which may be longer than its cache
  const auto shape = r.shape(total);
  if (!shape || !element_count(*shape).is(1)) return lengths;
  const ValueId one = r.emit.reshape(total, {1});
  const DType dtype = r.dtype(one);
  const Dim past = (*r.shape(r.input(kPastK)))[2];
  const ValueId positive = r.emit.compare("Greater", one, 0.0);
  const ValueId cache = r.emit.dim_value(form.cache, dtype);
  const ValueId told =
      form.cache == past
          ? r.emit.compare("LessOrEqual", one, cache)
          : r.emit.compare("Equal", r.emit.binary("Max", one, r.emit.dim_value(past, dtype)),
                           cache);
  const ValueId valid = r.emit.binary("And", positive, told);  // arguments have no order
  return r.emit.where(valid, lengths, r.emit.scalar_like(lengths, 0.0));
}

ir::Attention options_of(const ir::Node& node, const Form& form) {
  const int64_t window = node.integer("local_window_size", -1);
  ir::Attention attention;
  attention.q_heads = form.q_heads;
  attention.kv_heads = form.kv_heads;
  attention.q_layout = attention.k_layout = attention.v_layout = "bshd";
  attention.y_layout = "bs(hd)";
  attention.scale = node.number("scale", 0.0f);
  attention.softcap = node.number("softcap", 0.0f);
  attention.causal_top_left = node.integer("causal", 1) != 0;
  attention.left_window = window > 0 ? window - 1 : -1;  // the query's own key is one of them
  return attention;
}

// [B, S]: where each new token stands in its row, also where the cache has lost the first ones.
ValueId token_positions(Rewrite& r, const Form& form, ValueId totals) {
  const DType dtype = r.dtype(totals);
  const ValueId tokens = r.emit.dim_value(form.sequence, dtype);
  const ValueId past = r.emit.binary("Max", r.emit.binary("Sub", totals, tokens), 0.0);
  const ValueId first = r.emit.reshape(past, {form.batch, 1});
  const ValueId token = r.emit.cast(r.emit.position({1, form.sequence}, 1), dtype);
  return r.emit.binary("Add", first, token);
}

// The rows of `all` that a windowed cache keeps: its last ones.
ValueId kept_rows(Rewrite& r, const Form& form, ValueId all, ValueId lengths) {
  Shape shape = *r.graph().value(all).shape;
  shape[2] = shape[2] - form.sequence;
  const ValueId rows = r.emit.dim_value(shape[2], r.dtype(lengths));
  const ValueId lost = r.emit.binary("Max", r.emit.binary("Sub", lengths, rows), 0.0);
  const ValueId first = r.emit.cast(r.emit.reshape(lost, {form.batch, 1, 1, 1}), DType::kI64);
  const ValueId row = r.emit.position({1, 1, shape[2], 1}, 2);
  const ValueId index = r.emit.binary("Add", first, row);
  ir::Node gather;
  gather.op = "GatherND";
  gather.inputs = {all, r.emit.expand(index, {form.batch, form.kv_heads, shape[2], 1})};
  gather.attributes["batch_dims"] = int64_t{2};
  return r.emit.emit(std::move(gather), r.dtype(all), shape);
}

// The attention over a longer cache, and the windowed one cut from it.
bool write_windowed(Rewrite& r, const Form& form, ir::Attention attention) {
  const ValueId rows = r.emit.dim_value(form.cache, r.dtype(attention.kv_lengths));
  attention.kv_lengths = r.emit.binary("Min", attention.kv_lengths, rows);
  const Shape past = *r.graph().value(attention.past_k).shape;
  ir::Node node;
  attention.write_to(node);
  node.name = r.node().name;
  node.sources = r.graph().node(r.id()).sources;
  for (const size_t output : {0, 1, 2}) {
    ir::Value value = r.graph().value(r.output(output == 0 || r.is_used(output) ? output : 0));
    value.producer = ir::kNoNode;
    if (output > 0) {
      value.dtype = r.dtype(attention.past_k);
      value.shape = Shape{form.batch, form.kv_heads, form.cache, past[3]};
    }
    node.outputs.push_back(r.graph().add_value(std::move(value)));
  }
  const std::vector<ValueId> results = node.outputs;
  r.graph().insert_before(r.id(), std::move(node));
  bool replaced = r.replace(0, results[0]);
  for (const size_t output : {1, 2}) {
    if (!r.is_used(output)) continue;
    const ValueId kept = kept_rows(r, form, results[output], attention.kv_lengths);
    replaced = r.replace(output, kept) && replaced;
  }
  return replaced;
}

// [B, 1, S, T] of bools: keys that queries at `positions` see, causally and inside the window.
ValueId seen_keys(Rewrite& r, const Form& form, const ir::Attention& attention) {
  const ValueId positions = token_positions(r, form, attention.kv_lengths);
  const ValueId own =
      r.emit.reshape(r.emit.cast(positions, DType::kI64), {form.batch, 1, form.sequence, 1});
  const ValueId key = r.emit.position({1, 1, 1, form.total}, 3);
  const ValueId causal = r.emit.compare("LessOrEqual", key, own);
  if (attention.left_window < 0) return causal;
  const double window = static_cast<double>(attention.left_window);
  const ValueId first = r.emit.binary("Sub", own, window);
  return r.emit.compare("And", causal, r.emit.compare("GreaterOrEqual", key, first));
}

// Queries over another node's cache: they alone are normed and rotated. A row of fewer keys than
// queries is padded, and its first query stands at its first key.
bool write_shared(Rewrite& r, const Form& form, ir::Attention attention) {
  attention.k = r.input(kPastK);
  attention.v = r.input(kPastV);
  attention.k_layout = attention.v_layout = "bhsd";
  const ValueId positions = attention.positions != kNoValue
                                ? attention.positions
                                : token_positions(r, form, attention.kv_lengths);
  attention.q = normed_heads(r, attention.q, attention.q_norm, attention.norm_epsilon);
  if (attention.has_rotary()) {
    const int64_t width = 2 * r.graph().value(attention.cos).shape->back().value();
    const Rotation rotation =
        rotation_at(r, attention.cos, attention.sin, positions, width, attention.interleaved);
    attention.q = rotate(r, attention.q, rotation, false);
  }
  attention.q_norm = attention.k_norm = attention.cos = attention.sin = attention.positions =
      kNoValue;
  attention.interleaved = false;
  attention.norm_epsilon = ir::Attention().norm_epsilon;
  const bool causal = std::exchange(attention.causal_top_left, false);
  if (causal && form.sequence.is(1)) {
    attention.causal = true;
  } else if (causal) {
    attention.mask = seen_keys(r, form, attention);
    attention.left_window = -1;
  }
  for (const size_t output : {1, 2}) {
    if (!r.is_used(output)) continue;
    const ValueId past = r.input(output == 1 ? kPastK : kPastV);
    const Shape shape = *r.graph().value(past).shape;
    const std::vector<int64_t> steps(4, 1);
    if (!r.replace(output, r.emit.slice(past, std::vector<Dim>(4, 0), steps, shape))) return false;
  }
  write(r, attention, {r.output(0)});
  return true;
}

bool group_query_attention(Rewrite& r) {
  Form form;
  if (const Support answer = read_form(r, form); !answer) return r.refuse(answer.reason);
  ir::Attention attention = options_of(r.node(), form);
  if (const Support answer = read_new_heads(r, form, attention); !answer) {
    return r.refuse(answer.reason);
  }
  attention.kv_lengths = lengths_of(r, form);
  attention.least_length = 1;  // seqlens_k is never negative
  if (form.shared) {
    attention.sinks = sinks_of(r, form);
    attention.q =
        r.emit.reshape(r.input(kQ), {form.batch, form.sequence, form.q_heads, form.head_size});
    return write_shared(r, form, attention);
  }
  const Tensors tensors = read_tensors(r, form);
  attention.q = tensors.q;
  attention.k = tensors.k;
  attention.v = tensors.v;
  attention.sinks = sinks_of(r, form);
  if (r.has_input(kBias)) attention.mask = pad_mask(r, r.input(kBias), form.cache);
  if (!r.has_input(kPastK)) {
    if (r.is_used(1)) write_out_new_heads(r, form, attention);
    if (!hand_out_new_keys(r, attention)) return false;
    write(r, attention, {r.output(0)});
    return true;
  }
  attention.past_k = r.input(kPastK);
  attention.past_v = r.input(kPastV);
  if (form.codes != DType::kUndefined) {
    attention.cache_type = form.codes;
    attention.k_scale = r.input(kScaleK);
    attention.v_scale = r.input(kScaleV);
  }
  if (form.windowed) {
    if (attention.has_rotary() && attention.positions == kNoValue) {
      attention.positions = token_positions(r, form, attention.kv_lengths);
    }
    return write_windowed(r, form, attention);
  }
  write_presents(r, form);
  write(r, attention, {r.output(0), used_output(r, 1), used_output(r, 2)});
  return true;
}

constexpr NamedRewrite kRules[] = {{"com.microsoft::GroupQueryAttention", group_query_attention}};

}  // namespace

std::span<const NamedRewrite> group_query_forms() { return kRules; }

}  // namespace tenon::attention_forms
