// Ops whose output has the shape of an operand or of all operands broadcast, and reductions.
#include <algorithm>

#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void same(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape) facts.set_shape(0, *shape);
}

void same_all_outputs(NodeFacts& facts) {
  for (size_t i = 0; i < facts.node().outputs.size(); ++i) {
    if (facts.shape(0)) facts.set_shape(i, *facts.shape(0));
  }
}

void broadcast_inputs(NodeFacts& facts) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < facts.input_count(); ++i) {
    if (!facts.shape(i)) return;
    shapes.push_back(*facts.shape(i));
  }
  facts.require_broadcast(shapes);
  if (auto shape = broadcast_all(shapes)) facts.set_shape(0, *shape);
}

// x, and operands of one element.
void same_by_numbers(NodeFacts& facts) {
  for (size_t i = 1; i < facts.input_count(); ++i) facts.require_elements(i, 1);
  same(facts);
}

// x, and operands that broadcast to it.
void same_by_smaller(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  for (size_t i = 1; i < facts.input_count(); ++i) facts.require_stretches(i, *shape);
  facts.set_shape(0, *shape);
}

// x, and operands with one element for each of x along `axis`.
void same_by_vectors(NodeFacts& facts, size_t axis) {
  const Shape* shape = facts.shape(0);
  if (!shape || axis >= shape->size()) return;
  for (size_t i = 1; i < facts.input_count(); ++i) facts.require_shape(i, {(*shape)[axis]});
  facts.set_shape(0, *shape);
}

void add_last(NodeFacts& facts) {
  if (facts.shape(0)) same_by_vectors(facts, facts.shape(0)->size() - 1);
}

Shape reduced(const Shape& shape, const std::vector<size_t>& axes, bool keepdims) {
  Shape result;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool gone = std::binary_search(axes.begin(), axes.end(), i);
    if (!gone) result.push_back(shape[i]);
    if (gone && keepdims) result.emplace_back(1);
  }
  return result;
}

void reduce(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  std::vector<int64_t> axes;
  if (facts.node().has("axes") || facts.has_input(1)) {
    const auto known = facts.integers_from("axes", 1);
    if (!known) return;
    axes = *known;
  }
  if (axes.empty() && facts.node().integer("noop_with_empty_axes", 0) != 0) {
    return facts.set_shape(0, *shape);
  }
  if (axes.empty()) {
    for (size_t i = 0; i < shape->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  const auto normal = normal_axes(axes, shape->size());
  if (!normal) return;
  facts.set_shape(0, reduced(*shape, *normal, facts.node().integer("keepdims", 1) != 0));
}

void arg_reduce(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), shape->size());
  if (!axis) return;
  Shape result = reduced(*shape, {*axis}, facts.node().integer("keepdims", 1) != 0);
  // Nothing has no largest element; where there is no result either, nobody asks. The ArgMax that
  // stands for a Hardmax has no version and no such need: Hardmax of nothing is nothing.
  if (facts.node().since_version > 0) {
    facts.require(min(element_count(result), 1), ir::Relation::kAtMost, (*shape)[*axis]);
  }
  facts.set_shape(0, std::move(result));
}

// Y, Mean, InvStdDev: the statistics have size 1 from `axis` on.
void layer_norm(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  facts.set_shape(0, *shape);
  facts.require_stretches(1, *shape);
  facts.require_stretches(2, *shape);
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  if (!axis) return;
  const Shape row(shape->begin() + static_cast<std::ptrdiff_t>(*axis), shape->end());
  facts.require(1, ir::Relation::kAtMost, element_count(row));
  Shape statistics = *shape;
  std::fill(statistics.begin() + static_cast<std::ptrdiff_t>(*axis), statistics.end(), Dim(1));
  facts.set_shape(1, statistics);
  facts.set_shape(2, statistics);
}

// input, skip, then weights of one row; output, mean, inv_std_var, input_skip_bias_sum
void skip_layer_norm(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape || shape->empty()) return;
  facts.require_stretches(1, *shape);
  // Only batches of the skip may be stretched.
  if (const Shape* skip = facts.shape(1); skip && skip->size() <= shape->size()) {
    for (size_t i = 1; i <= std::min<size_t>(2, skip->size()); ++i) {
      facts.require_equal((*skip)[skip->size() - i], (*shape)[shape->size() - i]);
    }
  }
  for (size_t i = 2; i < facts.input_count(); ++i) facts.require_shape(i, {shape->back()});
  Shape statistics = *shape;
  statistics.back() = 1;
  facts.set_shape(0, *shape);
  facts.set_shape(1, statistics);
  facts.set_shape(2, statistics);
  facts.set_shape(3, *shape);
}

void channel_norm(NodeFacts& facts) { same_by_vectors(facts, 1); }

// Scale and bias have one element per channel, before opset 21 one per group.
void group_norm(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const int64_t groups = facts.node().integer("num_groups", 0);
  if (!shape || shape->size() < 2 || groups <= 0) return;
  facts.require(groups, ir::Relation::kDivides, (*shape)[1]);
  const int version = facts.node().since_version;
  const Dim weights = version > 0 && version < 21 ? Dim(groups) : (*shape)[1];
  for (const size_t weight : {1, 2}) facts.require_shape(weight, {weights});
  facts.set_shape(0, *shape);
}

void batch_norm(NodeFacts& facts) {
  same_by_vectors(facts, 1);
  for (size_t i = 1; i < 5; ++i) {
    if (facts.shape(3)) facts.set_shape(i, *facts.shape(3));
  }
}

// x [B, S, H*D] or [B, H, S, D], positions [B, S] or one, cos and sin [rows, W] or [B, S, W].
void rotate_at(NodeFacts& facts, size_t positions, size_t cos) {
  const Shape* x = facts.shape(0);
  if (!x || (x->size() != 3 && x->size() != 4)) return;
  const Shape* rows = facts.shape(positions);
  const Shape* table = facts.shape(cos);
  const Dim tokens = (*x)[x->size() == 4 ? 2 : 1];
  if (table) facts.require_shape(cos + 1, *table);
  if (table && table->size() == 3) facts.require_shape(cos, {(*x)[0], tokens, table->back()});
  // A table may serve any positions, but ONNX Runtime wants a row for as many tokens as there are.
  if (table && table->size() == 2) facts.require(tokens, ir::Relation::kAtMost, table->front());
  if (rows && rows->size() == 2) facts.require_shape(positions, {(*x)[0], tokens});
  if (rows && rows->size() != 2) facts.require_elements(positions, 1);
  facts.set_shape(0, *x);
}

void rotary(NodeFacts& facts) { rotate_at(facts, 3, 1); }
void contrib_rotary(NodeFacts& facts) { rotate_at(facts, 1, 2); }

// data, indices, updates: an update for each index, and no more of them than data has elsewhere.
void scatter_elements(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices) return;
  facts.require_shape(2, *indices);
  require_inside(facts, *indices, *data, facts.node().integer("axis", 0));
  facts.set_shape(0, *data);
}

// A slice of data for each tuple of indices.
void scatter_nd(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices || indices->empty() || !indices->back().is_constant()) return;
  const int64_t length = indices->back().value();
  if (length < 0 || length > static_cast<int64_t>(data->size())) return;
  Shape updates(indices->begin(), indices->end() - 1);
  updates.insert(updates.end(), data->begin() + length, data->end());
  facts.require_shape(2, updates);
  facts.set_shape(0, *data);
}

// past_cache, update, write_indices: all of the update fits along the sequence, and is as large as
// the cache elsewhere.
void tensor_scatter(NodeFacts& facts) {
  const Shape* cache = facts.shape(0);
  const Shape* update = facts.shape(1);
  if (!cache || !update || cache->empty() || update->size() != cache->size()) return;
  const auto axis = normal_axis(facts.node().integer("axis", -2), cache->size());
  if (!axis) return;
  Shape wanted = *cache;
  wanted[*axis] = (*update)[*axis];
  facts.require_shape(1, wanted);
  facts.require((*update)[*axis], ir::Relation::kAtMost, (*cache)[*axis]);
  facts.require_shape(2, {cache->front()});
  facts.set_shape(0, *cache);
}

constexpr ShapeRule kRules[] = {
    {"Abs", same},
    {"Acos", same},
    {"Acosh", same},
    {"Asin", same},
    {"Asinh", same},
    {"Atan", same},
    {"Atanh", same},
    {"BatchNormalization", batch_norm},
    {"Bernoulli", same},
    {"BitwiseNot", same},
    {"Cast", same},
    {"CastLike", same},
    {"Ceil", same},
    {"Celu", same},
    {"Clip", same_by_numbers},
    {"Cos", same},
    {"Cosh", same},
    {"CumSum", same_by_numbers},
    {"Dropout", same_all_outputs},
    {"Elu", same},
    {"Erf", same},
    {"Exp", same},
    {"EyeLike", same},
    {"Floor", same},
    {"Gelu", same},
    {"GroupNormalization", group_norm},
    {"HardSigmoid", same},
    {"HardSwish", same},
    {"Hardmax", same},
    {"Identity", same},
    {"InstanceNormalization", channel_norm},
    {"IsInf", same},
    {"IsNaN", same},
    {"LRN", same},
    {"LayerNormalization", layer_norm},
    {"LeakyRelu", same},
    {"Log", same},
    {"LogSoftmax", same},
    {"LpNormalization", same},
    {"MeanVarianceNormalization", same},
    {"Mish", same},
    {"Neg", same},
    {"Not", same},
    {"PRelu", same_by_smaller},
    {"RMSNormalization", same_by_smaller},
    {"Reciprocal", same},
    {"Relu", same},
    {"ReverseSequence", same},
    {"RotaryEmbedding", rotary},
    {"Round", same},
    {"Scatter", scatter_elements},
    {"ScatterElements", scatter_elements},
    {"ScatterND", scatter_nd},
    {"Selu", same},
    {"Shrink", same},
    {"Sigmoid", same},
    {"Sign", same},
    {"SimplifiedLayerNormalization", layer_norm},
    {"Sin", same},
    {"Sinh", same},
    {"Softmax", same},
    {"Softplus", same},
    {"Softsign", same},
    {"Sqrt", same},
    {"Swish", same},
    {"Tan", same},
    {"Tanh", same},
    {"TensorScatter", tensor_scatter},
    {"ThresholdedRelu", same},
    {"Trilu", same_by_numbers},
    {"com.microsoft::BiasGelu", add_last},
    {"com.microsoft::FastGelu", add_last},
    {"com.microsoft::Gelu", same},
    {"com.microsoft::GroupNorm", same},
    {"com.microsoft::QuickGelu", same},
    {"com.microsoft::RotaryEmbedding", contrib_rotary},
    {"com.microsoft::SimplifiedLayerNormalization", layer_norm},
    {"com.microsoft::SkipLayerNormalization", skip_layer_norm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", skip_layer_norm},
    {"tenon::Quantize", same_by_smaller},

    {"Add", broadcast_inputs},
    {"And", broadcast_inputs},
    {"BitShift", broadcast_inputs},
    {"BitwiseAnd", broadcast_inputs},
    {"BitwiseOr", broadcast_inputs},
    {"BitwiseXor", broadcast_inputs},
    {"Div", broadcast_inputs},
    {"Equal", broadcast_inputs},
    {"Greater", broadcast_inputs},
    {"GreaterOrEqual", broadcast_inputs},
    {"Less", broadcast_inputs},
    {"LessOrEqual", broadcast_inputs},
    {"Max", broadcast_inputs},
    {"Mean", broadcast_inputs},
    {"Min", broadcast_inputs},
    {"Mod", broadcast_inputs},
    {"Mul", broadcast_inputs},
    {"Or", broadcast_inputs},
    {"Pow", broadcast_inputs},
    {"Sub", broadcast_inputs},
    {"Sum", broadcast_inputs},
    {"Where", broadcast_inputs},
    {"Xor", broadcast_inputs},

    {"ArgMax", arg_reduce},
    {"ArgMin", arg_reduce},
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceLogSum", reduce},
    {"ReduceLogSumExp", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
};

}  // namespace

std::span<const ShapeRule> pointwise_shape_rules() { return kRules; }

}  // namespace tenon
