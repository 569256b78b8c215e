// ONNX Attention-23 and -24.
//
//   q, k, v: [B,H,S,D], or [B,S,H*D] with q_num_heads and kv_num_heads
//   present = Concat(past, new);  mask: bool keeps where true, float is added
//   causal: query i sees key j when j <= i + past length; with nonpad_kv_seqlen (24: the cache is
//   the caller's, k holds all of it) when j <= i + nonpad_kv_seqlen[b] - Sq
//
// Asked for its scores (qk_matmul_output) it is written out, since no fused kernel keeps them.
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "base/support.h"
#include "graph_partitioner/passes/attention_forms/forms.h"

namespace tenon::attention_forms {
namespace {

using ir::kNoValue;
using ir::ValueId;

enum Input { kQ, kK, kV, kMask, kPastK, kPastV, kLengths };
enum Output { kY, kPresentK, kPresentV, kScores };

struct Form {
  bool packed_heads = false;  // three dims
  int64_t q_heads = 0, kv_heads = 0;
  Dim queries, new_keys, keys;
};

// A number of heads that only a Run could tell, or that nobody wrote down, is 0.
int64_t heads_of(Rewrite& r, const Shape& shape, std::string_view attribute) {
  if (shape.size() == 3) return r.node().integer(attribute, 0);
  return shape[1].is_constant() ? shape[1].value() : 0;
}

Support read_form(Rewrite& r, const Shape& q, const Shape& k, Form& form) {
  if (q.size() != k.size() || q.size() < 3 || q.size() > 4) {
    return Support::no(fmt::format("q is {} and k is {}: both of rank 3 or both of rank 4 is known",
                                   text(q), text(k)));
  }
  form.packed_heads = q.size() == 3;
  form.q_heads = heads_of(r, q, "q_num_heads");
  form.kv_heads = heads_of(r, k, "kv_num_heads");
  if (form.q_heads <= 0 || form.kv_heads <= 0) {
    return Support::no(fmt::format(
        "the number of heads is not known before Run: q is {} and k is {}", text(q), text(k)));
  }
  if (form.q_heads % form.kv_heads != 0) {
    return Support::no(
        fmt::format("{} query heads do not share {} KV heads", form.q_heads, form.kv_heads));
  }
  const size_t sequence = form.packed_heads ? 1 : 2;
  form.queries = q[sequence];
  form.new_keys = form.keys = k[sequence];
  if (r.has_input(kPastK) != r.has_input(kPastV)) {
    return Support::no("past_key and past_value come together only");
  }
  return Support::yes();
}

// From 24 on a mask may be shorter than the keys; the rest is hidden.
ValueId mask_for(Rewrite& r, const Form& form) {
  const ValueId mask = r.input(kMask);
  if (mask == kNoValue || r.node().since_version == 23) return mask;
  return pad_mask(r, mask, form.keys);
}

// Without a past the present is k itself: a view, or its transpose.
bool present_without_past(Rewrite& r, const Form& form) {
  const ValueId presents[] = {kK, kV};
  for (size_t i = 0; i < 2; ++i) {
    if (!r.is_used(kPresentK + i)) continue;
    const ValueId given = r.input(presents[i]);
    ValueId present = given;
    if (form.packed_heads) {
      present = split_heads(r, given, form.kv_heads);
    } else {
      ir::Node view;
      view.op = "Reshape";
      view.inputs = {given};
      present = r.emit.emit(std::move(view), r.dtype(given), r.shape(given));
    }
    if (!r.replace(kPresentK + i, present)) return false;
  }
  return true;
}

ir::Attention fused(Rewrite& r, const Form& form) {
  const ir::Node& node = r.node();
  const bool causal = node.integer("is_causal", 0) != 0;
  ir::Attention attention;
  attention.q = r.input(kQ);
  attention.k = r.input(kK);
  attention.v = r.input(kV);
  attention.mask = mask_for(r, form);
  attention.past_k = r.input(kPastK);
  attention.past_v = r.input(kPastV);
  attention.kv_lengths = r.input(kLengths);
  if (r.has_input(kLengths)) attention.least_length = 0;
  attention.q_heads = form.q_heads;
  attention.kv_heads = form.kv_heads;
  if (form.packed_heads) {
    attention.q_layout = attention.k_layout = attention.v_layout = attention.y_layout = "bs(hd)";
  }
  attention.scale = node.number("scale", 0.0f);
  attention.softcap = node.number("softcap", 0.0f);
  attention.causal = causal && r.has_input(kLengths);
  attention.causal_top_left = causal && !r.has_input(kLengths);
  attention.left_window = node.integer("left_window_size", -1);
  attention.right_window = node.integer("right_window_size", -1);
  return attention;
}

// --- written out ---

ValueId four_dims(Rewrite& r, ValueId x, const Form& form, int64_t heads) {
  return form.packed_heads ? split_heads(r, x, heads) : x;
}

// Heads of k and v as often as queries share them.
ValueId repeat_heads(Rewrite& r, ValueId x, const Form& form) {
  const int64_t group = form.q_heads / form.kv_heads;
  if (group == 1) return x;
  const Shape s = *r.graph().value(x).shape;
  const ValueId one = r.emit.reshape(x, {s[0], s[1], 1, s[2], s[3]});
  const ValueId wide = r.emit.expand(one, {s[0], s[1], group, s[2], s[3]});
  return r.emit.reshape(wide, {s[0], form.q_heads, s[2], s[3]});
}

ValueId dot(Rewrite& r, ValueId a, ValueId b, bool b_k_last, double alpha, Shape shape) {
  ir::ScaledDot product;
  product.a = a;
  product.b = b;
  product.b_k_last = b_k_last;
  product.alpha_constant = static_cast<float>(alpha);
  product.result = r.dtype(a);
  ir::Node node;
  product.write_to(node);
  return r.emit.emit(std::move(node), r.dtype(a), std::move(shape));
}

// [1,1,Sq,Sk], true where query i may see key j; none: it sees all.
ValueId visible(Rewrite& r, const Form& form) {
  if (r.node().integer("is_causal", 0) == 0) return kNoValue;
  const ValueId key = r.emit.position({1, 1, 1, form.keys}, 3);
  const ValueId query = r.emit.position({1, 1, form.queries, 1}, 2);
  const ValueId past = r.emit.dim_value(form.keys - form.new_keys, DType::kI64);
  return r.emit.compare("LessOrEqual", key, r.emit.binary("Add", query, past));
}

ValueId softcapped(Rewrite& r, ValueId scores) {
  const float cap = r.node().number("softcap", 0.0f);
  if (cap <= 0.0f) return scores;
  return r.emit.binary("Mul", r.emit.unary("Tanh", r.emit.binary("Div", scores, cap)), cap);
}

ValueId masked(Rewrite& r, ValueId scores, const Form& form) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const DType dtype = r.dtype(scores);
  if (const ValueId mask = mask_for(r, form); mask != kNoValue) {
    const bool keeps = r.dtype(mask) == DType::kBool;
    scores = r.emit.binary("Add", scores, keeps ? additive_mask(r, mask, dtype, kHidden) : mask);
  }
  if (const ValueId keep = visible(r, form); keep != kNoValue) {
    scores = r.emit.binary("Add", scores, additive_mask(r, keep, dtype, kHidden));
  }
  return scores;
}

// Rows without a key are 0, not NaN.
ValueId softmax(Rewrite& r, ValueId scores) {
  ir::Node node;
  node.op = "Softmax";
  node.inputs = {scores};
  node.attributes["axis"] = int64_t{3};
  const Shape shape = *r.graph().value(scores).shape;
  const ValueId plain = r.emit.emit(std::move(node), r.dtype(scores), shape);
  const ValueId best = r.emit.reduce("ReduceMax", scores, {3});
  const ValueId empty = r.emit.compare("Equal", best, -std::numeric_limits<double>::infinity());
  return r.emit.where(empty, r.emit.scalar_like(plain, 0.0), plain);
}

double scale_of(Rewrite& r, const Dim& head_size) {
  const float given = r.node().number("scale", 0.0f);
  return given != 0.0f ? given : 1.0 / std::sqrt(static_cast<double>(head_size.value()));
}

// Only kernels of attention look whether lengths fit the keys, and know windows.
Support can_be_written_out(Rewrite& r, const Dim& width) {
  const ir::Node& node = r.node();
  if (r.has_input(kLengths)) return Support::no("qk_matmul_output beside nonpad_kv_seqlen");
  if (node.integer("left_window_size", -1) >= 0 || node.integer("right_window_size", -1) >= 0) {
    return Support::no("qk_matmul_output of a window of keys");
  }
  const int64_t mode = node.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) return Support::no(fmt::format("qk_matmul_output_mode is {}", mode));
  if (!width.is_constant()) {
    return Support::no(fmt::format("the head size, {}, is not known before Run", width.text()));
  }
  return Support::yes();
}

bool written_out(Rewrite& r, const Form& form) {
  const int64_t mode = r.node().integer("qk_matmul_output_mode", 0);
  const ValueId q = four_dims(r, r.input(kQ), form, form.q_heads);
  ValueId k = four_dims(r, r.input(kK), form, form.kv_heads);
  ValueId v = four_dims(r, r.input(kV), form, form.kv_heads);
  const Shape shape = *r.graph().value(q).shape;
  if (r.has_input(kPastK)) {
    k = concat(r, {r.input(kPastK), k}, 2);
    v = concat(r, {r.input(kPastV), v}, 2);
    if (r.is_used(kPresentK) && !r.replace(kPresentK, k)) return false;
    if (r.is_used(kPresentV) && !r.replace(kPresentV, v)) return false;
  } else if (!present_without_past(r, form)) {
    return false;
  }
  const Shape square = {shape[0], form.q_heads, form.queries, form.keys};
  const ValueId raw = dot(r, q, repeat_heads(r, k, form), true, scale_of(r, shape[3]), square);
  const ValueId capped = softcapped(r, raw);
  const ValueId biased = masked(r, capped, form);
  const ValueId weights = softmax(r, biased);
  const ValueId stages[] = {raw, capped, biased, weights};
  if (!r.replace(kScores, stages[mode])) return false;
  const ValueId values = repeat_heads(r, v, form);
  const Dim value_size = r.graph().value(v).shape->back();
  ValueId y =
      dot(r, weights, values, false, 1.0, {shape[0], form.q_heads, form.queries, value_size});
  if (form.packed_heads) {
    y = r.emit.transpose(y, {0, 2, 1, 3});
    y = r.emit.reshape(y, {shape[0], form.queries, value_size * form.q_heads});
  }
  return r.replace(kY, y);
}

// Where a shape is not known, that is the reason, and whoever asks for kernels finds it.
bool onnx_attention(Rewrite& r) {
  const auto q = r.shape(r.input(kQ)), k = r.shape(r.input(kK)), v = r.shape(r.input(kV));
  if (!q || !k || !v || (r.has_input(kMask) && !r.shape(r.input(kMask)))) return false;
  Form form;
  if (const Support answer = read_form(r, *q, *k, form); !answer) return r.refuse(answer.reason);
  if (v->size() != k->size()) return r.refuse("k and v differ in rank");
  if (r.has_input(kPastK)) {
    const auto past = r.shape(r.input(kPastK));
    if (!past) return false;
    if (past->size() != 4) return r.refuse(fmt::format("past_key has rank {}", past->size()));
    form.keys = form.keys + (*past)[2];
  }
  if (r.is_used(kScores)) {
    if (const Support answer = can_be_written_out(r, q->back()); !answer) {
      return r.refuse(answer.reason);
    }
    return written_out(r, form);
  }
  ir::Attention attention = fused(r, form);
  std::vector<ValueId> outputs = {r.output(kY)};
  if (r.has_input(kPastK)) {
    outputs.push_back(used_output(r, kPresentK));
    outputs.push_back(used_output(r, kPresentV));
  } else if (!present_without_past(r, form)) {
    return false;
  }
  take_output_transpose(r, attention);
  write(r, attention, std::move(outputs));
  return true;
}

constexpr NamedRewrite kRules[] = {{"Attention", onnx_attention}};

}  // namespace

std::span<const NamedRewrite> onnx_forms() { return kRules; }

}  // namespace tenon::attention_forms
