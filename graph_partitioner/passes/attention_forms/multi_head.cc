// com.microsoft::MultiHeadAttention and com.microsoft::Attention.
//
//   MultiHeadAttention   q [B,S,H*D]; k, v [B,L,H*D] or [B,H,L,D]; bias of the three projections;
//                        packed q [B,S,H,3,D] or k [B,L,H,2,D]; past and present [B,H,.,D]
//   Attention            x [B,S,I] · weights [I, q|k|v] + bias, then the same; past [2,B,H,P,D]
//
// Padding masks of integers, by shape: [B] keys that count, [2B] ends then starts, [B,T], [B,S,T].
// What they hide is lowered by mask_filter_value, not removed.
#include <limits>

#include "graph_partitioner/passes/attention_forms/forms.h"

namespace tenon::attention_forms {
namespace {

using ir::kNoValue;
using ir::ValueId;

constexpr float kDefaultFilter = -10000.0f;

// [1,1,1,T] or [B,1,1,T] or [B,1,S,T]: true where a key counts. kNoValue: a shape unknown to us.
ValueId kept_keys(Rewrite& r, ValueId mask, const Dim& batch, const Dim& keys) {
  const auto shape = r.shape(mask);
  if (!shape) return kNoValue;
  const DType dtype = r.dtype(mask);
  if (shape->size() == 2 || shape->size() == 3) {
    const Dim rows = shape->size() == 3 ? (*shape)[1] : Dim(1);
    if (!(shape->back() == keys)) return kNoValue;
    const ValueId wide = r.emit.reshape(mask, {(*shape)[0], 1, rows, keys});
    return r.emit.compare("Greater", wide, 0.0);
  }
  if (shape->size() != 1) return kNoValue;
  const ValueId key = r.emit.cast(r.emit.position({1, 1, 1, keys}, 3), dtype);
  const auto bound = [&](const Dim& start) {
    return r.emit.reshape(slice_axis(r, mask, 0, start, batch), {batch, 1, 1, 1});
  };
  const ValueId before_end = r.emit.compare("Less", key, bound(0));
  if ((*shape)[0] == batch) return before_end;
  if (!((*shape)[0] == batch * 2)) return kNoValue;
  return r.emit.compare("And", before_end, r.emit.compare("GreaterOrEqual", key, bound(batch)));
}

struct Masks {
  ValueId padding = kNoValue, added = kNoValue;  // as given
};

// The additive mask, or nullopt where a shape is unknown to us.
std::optional<ValueId> combined(Rewrite& r, const Masks& masks, const Dim& batch, const Dim& keys) {
  if (masks.added != kNoValue && !r.shape(masks.added)) return std::nullopt;
  if (masks.padding == kNoValue) return masks.added;
  const ValueId keep = kept_keys(r, masks.padding, batch, keys);
  if (keep == kNoValue) return std::nullopt;
  const float filter = r.node().number("mask_filter_value", kDefaultFilter);
  return add_masks(r, additive_mask(r, keep, r.dtype(r.output()), filter), masks.added);
}

ValueId add_bias(Rewrite& r, ValueId x, ValueId bias, const Dim& start) {
  if (bias == kNoValue) return x;
  return r.emit.binary("Add", x, slice_axis(r, bias, 0, start, r.graph().value(x).shape->back()));
}

struct Tensors {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
  std::string kv_layout = "bs(hd)", q_layout = "bs(hd)";
};

// One of `parts` tensors packed along axis 3 of [B,S,H,parts,D].
ValueId unpacked(Rewrite& r, ValueId packed, int64_t part) {
  const Shape s = *r.graph().value(packed).shape;
  return r.emit.reshape(slice_axis(r, packed, 3, part, 1), {s[0], s[1], s[2], s[4]});
}

std::optional<Tensors> read_tensors(Rewrite& r) {
  Tensors t{r.input(0), r.input(1), r.input(2)};
  const ValueId bias = r.input(3);
  const auto q = r.shape(t.q);
  if (!q) return std::nullopt;
  if (q->size() == 5) {
    if (bias != kNoValue || t.k != kNoValue) return std::nullopt;
    return Tensors{unpacked(r, t.q, 0), unpacked(r, t.q, 1), unpacked(r, t.q, 2), "bshd", "bshd"};
  }
  const auto k = r.shape(t.k);
  if (q->size() != 3 || !k) return std::nullopt;
  t.q = add_bias(r, t.q, bias, 0);
  if (k->size() == 5) {
    if (bias != kNoValue || t.v != kNoValue) return std::nullopt;
    return Tensors{t.q, unpacked(r, t.k, 0), unpacked(r, t.k, 1), "bshd", "bs(hd)"};
  }
  if (!r.shape(t.v) || r.shape(t.v)->size() != k->size()) return std::nullopt;
  if (k->size() == 4) {  // a cache of cross attention, already with its bias
    t.kv_layout = "bhsd";
    return t;
  }
  const Dim hidden = q->back();
  t.k = add_bias(r, t.k, bias, hidden);
  t.v = add_bias(r, t.v, bias, hidden + k->back());
  return t;
}

Dim key_count(Rewrite& r, const Tensors& t) {
  return (*r.graph().value(t.k).shape)[t.kv_layout == "bhsd" ? 2 : 1];
}

// Without a past the present is k with its heads apart.
bool present_without_past(Rewrite& r, const Tensors& t, int64_t heads) {
  for (const size_t output : {1u, 2u}) {
    if (!r.is_used(output)) continue;
    if (t.kv_layout != "bs(hd)") return false;
    if (!r.replace(output, split_heads(r, output == 1 ? t.k : t.v, heads))) return false;
  }
  return true;
}

// The last query stands at the last key, as the CUDA provider has it, and sees all; where there are
// fewer keys than queries the first one stands at the first key.
void hide_later_keys(Rewrite& r, ir::Attention& attention, const Dim& queries, const Dim& new_keys,
                     const Dim& keys) {
  if (r.node().integer("unidirectional", 0) == 0 || queries.is(1)) return;
  attention.causal_top_left = queries == new_keys;  // behind the past
  if (attention.causal_top_left) return;
  const ValueId key = r.emit.position({1, 1, 1, keys}, 3);
  const ValueId query = r.emit.position({1, 1, queries, 1}, 2);
  const ValueId first = r.emit.dim_value(max(keys - queries, 0), DType::kI64);
  const ValueId own = r.emit.binary("Add", query, first);
  const ValueId keep = r.emit.compare("LessOrEqual", key, own);
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const ValueId hiding = additive_mask(r, keep, r.dtype(r.output()), kHidden);
  attention.mask = add_masks(r, hiding, attention.mask);
}

bool multi_head_attention(Rewrite& r) {
  const int64_t heads = r.node().integer("num_heads", 0);
  // Buffer sharing by a length at run time and beams are not ours.
  if (heads <= 0 || r.has_input(8) || r.has_input(9) || r.is_used(3)) return false;
  if (r.has_input(6) != r.has_input(7)) return false;
  const auto tensors = read_tensors(r);
  if (!tensors) return false;
  ir::Attention attention;
  Dim keys = key_count(r, *tensors);
  if (r.has_input(6)) {
    const auto past = r.shape(r.input(6));
    if (!past || past->size() != 4 || tensors->kv_layout == "bhsd") return false;
    keys = keys + (*past)[2];
    attention.past_k = r.input(6);
    attention.past_v = r.input(7);
  }
  const Dim batch = (*r.shape(r.input(0)))[0];
  const auto mask = combined(r, {r.input(4), r.input(5)}, batch, keys);
  if (!mask) return false;
  if (!r.has_input(6) && !present_without_past(r, *tensors, heads)) return false;
  attention.q = tensors->q;
  attention.k = tensors->k;
  attention.v = tensors->v;
  attention.mask = *mask;
  attention.q_heads = attention.kv_heads = heads;
  attention.q_layout = tensors->q_layout;
  attention.k_layout = attention.v_layout = tensors->kv_layout;
  attention.y_layout = "bs(hd)";
  attention.scale = r.node().number("scale", 0.0f);
  hide_later_keys(r, attention, (*r.shape(r.input(0)))[1], key_count(r, *tensors), keys);
  std::vector<ValueId> outputs = {r.output(0)};
  if (r.has_input(6)) {
    outputs.push_back(used_output(r, 1));
    outputs.push_back(used_output(r, 2));
  }
  write(r, attention, std::move(outputs));
  return true;
}

// --- com.microsoft::Attention: the projection, then the same ---

ValueId projected(Rewrite& r, const Shape& input, const Dim& width) {
  ir::ScaledDot dot;
  dot.a = r.input(0);
  dot.b = r.input(1);
  dot.bias = r.input(2);
  dot.result = r.dtype(r.output());
  ir::Node node;
  dot.write_to(node);
  return r.emit.emit(std::move(node), dot.result, Shape{input[0], input[1], width});
}

// q, k and v side by side in the last dim; nullopt where their widths are not told.
std::optional<std::vector<Dim>> widths(Rewrite& r, const Dim& total) {
  const std::vector<int64_t> given = r.node().integers("qkv_hidden_sizes");
  if (given.size() == 3) return std::vector<Dim>(given.begin(), given.end());
  if (!given.empty() || !total.is_constant() || total.value() % 3 != 0) return std::nullopt;
  return std::vector<Dim>(3, Dim(total.value() / 3));
}

// past [2,B,H,P,D] cut in two.
ValueId half_of_past(Rewrite& r, ValueId past, int64_t half) {
  const Shape s = *r.graph().value(past).shape;
  return r.emit.reshape(slice_axis(r, past, 0, half, 1), {s[1], s[2], s[3], s[4]});
}

struct Cache {
  ValueId past_k = kNoValue, past_v = kNoValue;
  Dim length;
};

std::optional<Cache> read_cache(Rewrite& r) {
  if (!r.has_input(4)) return Cache{};
  const auto past = r.shape(r.input(4));
  if (!past || past->size() != 5) return std::nullopt;
  return Cache{half_of_past(r, r.input(4), 0), half_of_past(r, r.input(4), 1), (*past)[3]};
}

// present [2,B,H,T,D]: keys then values.
bool write_present(Rewrite& r, ValueId keys, ValueId values) {
  const Shape s = *r.graph().value(keys).shape;
  const Shape stacked = {1, s[0], s[1], s[2], s[3]};
  return r.replace(1,
                   concat(r, {r.emit.reshape(keys, stacked), r.emit.reshape(values, stacked)}, 0));
}

bool projecting_attention(Rewrite& r) {
  const ir::Node& node = r.node();
  const int64_t heads = node.integer("num_heads", 0);
  const auto input = r.shape(r.input(0)), weights = r.shape(r.input(1));
  if (heads <= 0 || !input || input->size() != 3 || !weights || weights->size() != 2) return false;
  if (node.integer("do_rotary", 0) != 0 || node.integer("past_present_share_buffer", 0) != 0 ||
      r.has_input(6)) {
    return false;
  }
  const auto sizes = widths(r, (*weights)[1]);
  const auto cache = read_cache(r);
  if (!sizes || !cache) return false;
  const bool cached = cache->past_k != kNoValue;
  const bool wants_present = r.is_used(1);
  if (wants_present && !((*sizes)[1] == (*sizes)[2])) return false;
  const auto mask = combined(r, {r.input(3), r.input(5)}, (*input)[0], (*input)[1] + cache->length);
  if (!mask) return false;
  const ValueId all = projected(r, *input, (*weights)[1]);
  ir::Attention attention;
  attention.q = slice_axis(r, all, 2, 0, (*sizes)[0]);
  attention.k = slice_axis(r, all, 2, (*sizes)[0], (*sizes)[1]);
  attention.v = slice_axis(r, all, 2, (*sizes)[0] + (*sizes)[1], (*sizes)[2]);
  attention.mask = *mask;
  attention.q_heads = attention.kv_heads = heads;
  attention.q_layout = attention.k_layout = attention.v_layout = attention.y_layout = "bs(hd)";
  attention.scale = node.number("scale", 0.0f);
  attention.causal_top_left = node.integer("unidirectional", 0) != 0;
  if (cached || wants_present) {
    // The stacked cache is joined here: keys and values are read where they end up.
    ValueId keys = split_heads(r, attention.k, heads), values = split_heads(r, attention.v, heads);
    if (cached) {
      keys = concat(r, {cache->past_k, keys}, 2);
      values = concat(r, {cache->past_v, values}, 2);
    }
    if (wants_present && !write_present(r, keys, values)) return false;
    attention.k = keys;
    attention.v = values;
    attention.k_layout = attention.v_layout = "bhsd";
    // Queries stand behind the past, which is part of k now.
    attention.causal = attention.causal_top_left;
    attention.causal_top_left = false;
  }
  write(r, attention, {r.output(0)});
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"com.microsoft::MultiHeadAttention", multi_head_attention},
    {"com.microsoft::Attention", projecting_attention},
};

}  // namespace

std::span<const NamedRewrite> multi_head_forms() { return kRules; }

}  // namespace tenon::attention_forms
