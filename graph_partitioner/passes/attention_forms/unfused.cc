// Attention as exporters write it:
//
//   q ──[scale]──[round]──┐
//                         dot ── scores.h ── probabilities.h ── dot ──[Cast]──[Transpose]── y
//   k ──[scale]──[round]──┘                      v ──[round]──┘
//
// Both products are plain tenon::ScaledDots, or of codes under one scale each: then the graph
// rounds to 8 bits and back, which stays in front of the attention. tensor_trace.h tells how far q,
// k and v dissolve. Scores and probabilities must be nobody else's.
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/attention_forms/probabilities.h"
#include "graph_partitioner/passes/attention_forms/scores.h"
#include "graph_partitioner/passes/attention_forms/tensor_trace.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ScaledDot;
using ir::ValueId;

bool is_wide(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Not scaled, or all by the same number.
bool is_tensor(const Graph& graph, const ir::BlockScale& scale) {
  if (scale == ir::BlockScale{}) return true;
  return scale.scale != kNoValue && !scale.per_channel && scale.block == 0 &&
         scale.zero_offset == 0 && scale.scale_type == DType::kUndefined &&
         scale.rounded == DType::kUndefined && is_wide(graph.value(scale.scale).dtype);
}

// Two tensors multiplied.
std::optional<ScaledDot> plain_dot(const Graph& graph, const Node& node) {
  if (!node.is(ir::kScaledDot) || node.body) return std::nullopt;
  ScaledDot dot = ScaledDot::from(node);
  const bool plain = is_tensor(graph, dot.scale_a) && is_tensor(graph, dot.scale_b) &&
                     dot.alpha == kNoValue && dot.bias == kNoValue && !dot.a_k_first &&
                     dot.b_type == DType::kUndefined;
  return plain ? std::optional(dot) : std::nullopt;
}

// A tensor of any rank as the four dims that tenon::Attention wants, by a view at most.
struct FourDims {
  ValueId value = kNoValue;
  Shape shape;
  std::vector<int> sources;  // of a view that dissolves
  ir::BlockScale scale{};    // of codes
};

// [B*H, S, D] was [B, H, S, D] before a view, or is [B*H, 1, S, D]; [S, D] is [1, 1, S, D].
std::optional<FourDims> as_four_dims(Rewrite& r, ValueId value, const ir::BlockScale& scale) {
  const auto shape = r.shape(value);
  if (!shape || shape->size() < 2) return std::nullopt;
  if (shape->size() == 4) return FourDims{value, *shape, {}, scale};
  const Node* view = r.graph().producer(value);
  if (shape->size() == 3 && view != nullptr && view->is("Reshape")) {
    const auto before = r.shape(view->input(0));
    if (before && before->size() == 4 &&
        *shape == Shape{(*before)[0] * (*before)[1], (*before)[2], (*before)[3]}) {
      return FourDims{view->input(0), *before, view->sources, scale};
    }
  }
  Dim batch = 1;
  for (size_t i = 0; i + 2 < shape->size(); ++i) batch = batch * (*shape)[i];
  return FourDims{value, {batch, 1, (*shape)[shape->size() - 2], shape->back()}, {}, scale};
}

// What the two products and the softmax between them amount to.
struct Found {
  ScaledDot first, second;
  Probabilities probabilities;
  Scores scores;
  FourDims q, k, v;
  size_t rank = 4;  // of the scores
  std::vector<int> sources;
};

// The dims fit, heads and head sizes are numbers.
bool is_attention(const Found& found) {
  const Shape &q = found.q.shape, &k = found.k.shape, &v = found.v.shape;
  const Dim& k_size = k[found.first.b_k_last ? 3 : 2];
  if (!q[3].is_constant() || !(k_size == q[3]) || !v[3].is_constant()) return false;
  return q[1].is_constant() && q[1] == k[1] && q[1] == v[1] && q[0] == k[0] && q[0] == v[0];
}

// A mask as it broadcasts with scores of four dims.
std::optional<Shape> mask_shape(Rewrite& r, ValueId mask, const Found& found) {
  const auto own = r.shape(mask);
  if (!own || found.rank == 4 || own->size() <= 2) return own;
  const Shape& q = found.q.shape;
  if (own->size() != 3) return std::nullopt;
  if ((*own)[0].is(1)) return Shape{1, 1, (*own)[1], (*own)[2]};
  if (!((*own)[0] == q[0] * q[1])) return std::nullopt;
  return Shape{q[0], q[1], (*own)[1], (*own)[2]};
}

bool masks_fit(Rewrite& r, const Found& found) {
  for (const Added& added : found.scores.added) {
    if (!mask_shape(r, added.mask, found)) return false;
  }
  for (const Hidden& hidden : found.scores.hidden) {
    if (!mask_shape(r, hidden.condition, found)) return false;
  }
  return true;
}

std::optional<Found> find_attention(Rewrite& r) {
  Found found;
  const auto second = plain_dot(r.graph(), r.node());
  if (!second || second->b_k_last || second->alpha_constant != 1.0f) return std::nullopt;
  const auto probabilities = trace_probabilities(r.graph(), second->a, second->scale_a);
  if (!probabilities) return std::nullopt;
  const auto scores = trace_scores(r.graph(), probabilities->scores);
  if (!scores) return std::nullopt;
  const Node& product = r.graph().node(scores->dot);
  const auto first = plain_dot(r.graph(), product);
  if (!first) return std::nullopt;
  const auto q = as_four_dims(r, first->a, first->scale_a),
             k = as_four_dims(r, first->b, first->scale_b),
             v = as_four_dims(r, second->b, second->scale_b);
  const auto rank = r.shape(second->a);
  if (!q || !k || !v || !rank || !r.shape(r.output())) return std::nullopt;
  found = {*first, *second,      *probabilities,        *scores, *q, *k,
           *v,     rank->size(), probabilities->sources};
  found.sources = ir::merge_sources(found.sources, scores->sources);
  found.sources = ir::merge_sources(found.sources, product.sources);
  for (const FourDims* operand : {&found.q, &found.k, &found.v}) {
    found.sources = ir::merge_sources(found.sources, operand->sources);
  }
  if (found.probabilities.sinks != kNoValue &&
      !((*r.shape(found.probabilities.sinks))[1] == found.q.shape[1])) {
    return std::nullopt;
  }
  if (found.scores.scale == 0.0 || !is_attention(found) || !masks_fit(r, found))
    return std::nullopt;
  return found;
}

void combine_masks(Rewrite& r, const Found& found, ir::Attention& attention) {
  Scores scores = found.scores;
  for (Added& added : scores.added) {
    added.mask = r.emit.reshape(added.mask, *mask_shape(r, added.mask, found));
  }
  for (Hidden& hidden : scores.hidden) {
    hidden.condition = r.emit.reshape(hidden.condition, *mask_shape(r, hidden.condition, found));
  }
  write_mask(r, scores, attention);
}

// Codes are brought back to numbers as the graph did it, in the type of their scale.
TensorTrace start_of(Rewrite& r, const FourDims& operand, const std::string& layout) {
  TensorTrace trace = untraced(r.emit.reshape(operand.value, operand.shape), layout);
  if (operand.scale == ir::BlockScale{}) return trace;
  Node dequantize;
  dequantize.op = "DequantizeLinear";
  dequantize.inputs = {trace.value, operand.scale.scale};
  if (operand.scale.zero_point != kNoValue) dequantize.inputs.push_back(operand.scale.zero_point);
  trace.rounding.push_back({std::move(dequantize), r.dtype(operand.scale.scale)});
  return trace;
}

ir::Attention attention_of(Rewrite& r, const Found& found) {
  const auto traced = [&](const FourDims& operand, const std::string& layout,
                          const std::vector<std::string>& allowed) {
    return trace_tensor(r, start_of(r, operand, layout), allowed);
  };
  TensorTrace q = traced(found.q, "bhsd", {"bhsd", "bshd"});
  const std::string k_layout = found.first.b_k_last ? "bhsd" : "bhds";
  TensorTrace k = traced(found.k, k_layout, {"bhsd", "bshd", "bhds"});
  TensorTrace v = traced(found.v, "bhsd", {"bhsd", "bshd"});
  if (v.scale != 1.0 || k.heads != v.heads) {  // as they stand, then
    k = start_of(r, found.k, k_layout);
    v = start_of(r, found.v, "bhsd");
  }
  for (const TensorTrace* trace : {&q, &k, &v}) r.absorb(trace->sources);
  ir::Attention attention;
  attention.q = materialize(r, q);
  attention.k = materialize(r, k);
  attention.v = materialize(r, v);
  attention.q_layout = q.layout;
  attention.k_layout = k.layout;
  attention.v_layout = v.layout;
  attention.q_heads = found.q.shape[1].value();
  attention.kv_heads = k.heads != 0 ? k.heads : attention.q_heads;
  attention.scale =
      static_cast<float>(found.scores.scale * q.scale * k.scale * found.first.alpha_constant);
  attention.softcap = static_cast<float>(found.scores.softcap);
  attention.probability_scale = found.probabilities.rounded_by;
  attention.probability_codes = found.probabilities.codes;
  attention.probability_type = found.probabilities.divided_in;
  combine_masks(r, found, attention);
  if (found.probabilities.sinks != kNoValue) {
    attention.sinks = r.emit.reshape(found.probabilities.sinks, {found.q.shape[1]});
  }
  // A sink counts where no key does.
  attention.nan_without_keys =
      attention.mask != kNoValue && attention.sinks == kNoValue && !found.probabilities.is_guarded;
  return attention;
}

// A Cast that alone reads y, to the type that q, k and v have, dissolves into y's type.
void take_output_cast(Rewrite& r, const ir::Attention& attention) {
  ir::Graph& graph = r.graph();
  const ValueId y = r.output();
  if (!graph.has_one_use(y)) return;
  const ir::NodeId reader = graph.consumers(y).front();
  const Node& node = graph.node(reader);
  const ValueId cast = node.output(0);
  if (!node.is("Cast") || r.dtype(cast) == r.dtype(y)) return;
  for (const ValueId operand : {attention.q, attention.k, attention.v}) {
    if (r.dtype(operand) != r.dtype(cast)) return;
  }
  r.absorb(node.sources);
  graph.value(y).dtype = r.dtype(cast);
  graph.replace_uses(cast, y);
  graph.remove_node(reader);
}

bool match_unfused(Rewrite& r) {
  const auto found = find_attention(r);
  if (!found) return false;
  r.absorb(found->sources);
  ir::Attention attention = attention_of(r, *found);
  take_output_cast(r, attention);
  if (found->rank != 4) {
    Shape four = found->q.shape;
    four[3] = found->v.shape[3];
    ir::Node node;
    attention.write_to(node);
    r.become("Reshape", {r.emit.emit(std::move(node), r.dtype(r.output()), std::move(four))});
    return true;
  }
  take_output_transpose(r, attention);
  write(r, attention, {r.output()});
  return true;
}

constexpr NamedRewrite kRules[] = {
    {ir::kScaledDot, match_unfused},
};

}  // namespace

std::span<const NamedRewrite> unfused_forms() { return kRules; }

}  // namespace tenon::attention_forms
