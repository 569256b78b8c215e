// com.microsoft::GroupQueryAttention, the attention of decoders.
//
//   q, k, v ──[RMS norm of heads]──[rotary at past + i]── Attention(past, seqlens_k + 1 keys)
//
// Keys land behind each row's own past; the cache is as long as past's buffer or the longest row.
// q may hold k and v too. Quantised caches, windowed caches and score outputs stay as they are.
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
  Dim cache;  // length of present
};

bool is_ours(Rewrite& r) {
  const ir::Node& node = r.node();
  const bool quantized = r.has_input(kScaleK) || r.has_input(kScaleV) ||
                         node.text("k_quant_type", "NONE") != "NONE" ||
                         node.text("v_quant_type", "NONE") != "NONE";
  return !quantized && node.integer("sliding_window_cache", 0) == 0 && !r.is_used(3) &&
         r.has_input(kPastK) == r.has_input(kPastV) && r.has_input(kK) == r.has_input(kV) &&
         r.has_input(kNormQ) == r.has_input(kNormK) && r.has_input(kLengths);
}

// Keys of all rows: as many as shapes tell, or else those of a cache that the model says keeps its
// length, so that the total, whatever its value, is no more. Lengths beyond it are cut.
std::optional<Dim> total_keys(Rewrite& r) {
  const auto total = r.emit.known_elements(r.input(kTotal));
  if (total && total->size() == 1 && r.is_bound(total->front())) return total->front();
  const auto past = r.has_input(kPastK) ? r.shape(r.input(kPastK)) : std::nullopt;
  if (!past || past->size() != 4) return std::nullopt;
  for (const size_t present : {1, 2}) {
    const auto shape = r.is_used(present) ? r.shape(r.output(present)) : std::nullopt;
    if (!shape || shape->size() != 4 || !((*shape)[2] == (*past)[2])) return std::nullopt;
  }
  return (*past)[2];
}

std::optional<Form> read_form(Rewrite& r) {
  Form form;
  form.q_heads = r.node().integer("num_heads", 0);
  form.kv_heads = r.node().integer("kv_num_heads", 0);
  const auto q = r.shape(r.input(kQ));
  if (!q || q->size() != 3 || !q->back().is_constant()) return std::nullopt;
  if (form.q_heads <= 0 || form.kv_heads <= 0 || form.q_heads % form.kv_heads != 0) {
    return std::nullopt;
  }
  const int64_t parts = r.has_input(kK) ? form.q_heads : form.q_heads + 2 * form.kv_heads;
  form.head_size = q->back().value() / parts;
  form.batch = (*q)[0];
  form.sequence = (*q)[1];
  if (r.has_input(kK)) {  // keys of another node's cache come with none of their own
    const auto k = r.shape(r.input(kK));
    if (!k || k->size() != 3 || !((*k)[1] == form.sequence)) return std::nullopt;
  }
  const bool needs_total = r.has_input(kPastK) || r.has_input(kBias);
  const std::optional<Dim> total = needs_total ? total_keys(r) : form.sequence;
  if (!total) return std::nullopt;
  form.cache = form.total = *total;
  if (r.has_input(kPastK)) {
    const auto past = r.shape(r.input(kPastK));
    if (!past || past->size() != 4 || r.dtype(r.input(kPastK)) != r.dtype(r.input(kQ))) {
      return std::nullopt;
    }
    form.cache = max((*past)[2], form.total);
  }
  return form;
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

ValueId normed(Rewrite& r, ValueId x, ValueId weight) {
  if (weight == kNoValue) return x;
  ir::Node norm;
  norm.op = "RMSNormalization";
  norm.inputs = {x, weight};
  norm.attributes["axis"] = int64_t{-1};
  norm.attributes["epsilon"] = r.node().number("qk_norm_epsilon", 1e-6f);
  return r.emit.emit(std::move(norm), r.dtype(x), r.graph().value(x).shape);
}

// [B, S]: what the caller says, or the row's past and on: max(0, length - S) + i.
ValueId positions_of(Rewrite& r, const Form& form, ValueId lengths) {
  if (r.has_input(kPositions)) return r.input(kPositions);
  const ValueId step = r.emit.position({1, form.sequence}, 1);
  if (!r.has_input(kPastK)) return step;
  const ValueId wide = r.emit.cast(r.emit.reshape(lengths, {form.batch, 1}), DType::kI64);
  const ValueId behind = r.emit.binary("Sub", wide, r.emit.dim_value(form.sequence, DType::kI64));
  const ValueId past = r.emit.binary("Max", behind, 0.0);
  return r.emit.binary("Add", past, step);
}

bool apply_rotary(Rewrite& r, const Form& form, ValueId lengths, Tensors& tensors) {
  if (r.node().integer("do_rotary", 0) == 0) return true;
  const auto cos = r.shape(r.input(kCos)), sin = r.shape(r.input(kSin));
  if (!cos || !sin || cos->size() != 2 || *cos != *sin || !(*cos)[1].is_constant()) return false;
  const int64_t width = 2 * (*cos)[1].value();
  if (width > form.head_size) return false;
  const Rotation rotation =
      rotation_at(r, r.input(kCos), r.input(kSin), positions_of(r, form, lengths), width,
                  r.node().integer("rotary_interleaved", 0) != 0);
  tensors.q = rotate(r, tensors.q, rotation, false);
  tensors.k = rotate(r, tensors.k, rotation, false);
  return true;
}

// One extra logit per head: given, or 0 for a smooth softmax.
ValueId sinks_of(Rewrite& r, const Form& form) {
  if (r.has_input(kSinks)) return r.input(kSinks);
  if (r.node().integer("smooth_softmax", 0) != 1) return kNoValue;
  const std::vector<double> zeros(form.q_heads, 0.0);
  return r.graph().add_constant("sinks",
                                ir::Tensor::of(r.dtype(r.input(kQ)), {form.q_heads}, zeros));
}

bool write_presents(Rewrite& r, const Form& form, const Tensors& tensors) {
  const Shape shape = {form.batch, form.kv_heads, form.cache, form.head_size};
  if (r.has_input(kPastK)) {
    r.set_shape(1, shape);
    r.set_shape(2, shape);
    return true;
  }
  if (r.is_used(1) && !r.replace(1, r.emit.transpose(tensors.k, {0, 2, 1, 3}))) return false;
  return !r.is_used(2) || r.replace(2, r.emit.transpose(tensors.v, {0, 2, 1, 3}));
}

bool group_query_attention(Rewrite& r) {
  const auto form = is_ours(r) ? read_form(r) : std::nullopt;
  if (!form || (r.has_input(kBias) && !r.shape(r.input(kBias)))) return false;
  const ir::Node& node = r.node();
  const DType count_type = r.dtype(r.input(kLengths));
  const ValueId counts = r.emit.reshape(r.input(kLengths), {form->batch});
  const ValueId lengths = r.emit.binary("Add", counts, r.emit.scalar(count_type, 1.0));
  Tensors tensors = read_tensors(r, *form);
  tensors.q = normed(r, tensors.q, r.input(kNormQ));
  tensors.k = normed(r, tensors.k, r.input(kNormK));
  if (!apply_rotary(r, *form, lengths, tensors)) return false;
  if (!write_presents(r, *form, tensors)) return false;
  const bool causal = node.integer("causal", 1) != 0;
  const int64_t window = node.integer("local_window_size", -1);
  ir::Attention attention;
  attention.q = tensors.q;
  attention.k = tensors.k;
  attention.v = tensors.v;
  attention.past_k = r.input(kPastK);
  attention.past_v = r.input(kPastV);
  attention.kv_lengths = lengths;
  attention.sinks = sinks_of(r, *form);
  if (r.has_input(kBias)) attention.mask = pad_mask(r, r.input(kBias), form->cache);
  attention.q_heads = form->q_heads;
  attention.kv_heads = form->kv_heads;
  attention.q_layout = attention.k_layout = attention.v_layout = "bshd";
  attention.y_layout = "bs(hd)";
  attention.scale = node.number("scale", 0.0f);
  attention.softcap = node.number("softcap", 0.0f);
  attention.causal_top_left = causal;
  attention.left_window = window > 0 ? window - 1 : -1;  // the query's own key is one of them
  std::vector<ValueId> outputs = {r.output(0)};
  if (r.has_input(kPastK)) {
    outputs.push_back(used_output(r, 1));
    outputs.push_back(used_output(r, 2));
  }
  write(r, attention, std::move(outputs));
  return true;
}

constexpr NamedRewrite kRules[] = {{"com.microsoft::GroupQueryAttention", group_query_attention}};

}  // namespace

std::span<const NamedRewrite> group_query_forms() { return kRules; }

}  // namespace tenon::attention_forms
