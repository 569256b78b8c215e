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
  if (auto shape = broadcast_all(shapes)) facts.set_shape(0, *shape);
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
  facts.set_shape(0, reduced(*shape, {*axis}, facts.node().integer("keepdims", 1) != 0));
}

// Y, Mean, InvStdDev: the statistics have size 1 from `axis` on.
void layer_norm(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  facts.set_shape(0, *shape);
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  if (!axis) return;
  Shape statistics = *shape;
  std::fill(statistics.begin() + static_cast<std::ptrdiff_t>(*axis), statistics.end(), Dim(1));
  facts.set_shape(1, statistics);
  facts.set_shape(2, statistics);
}

// output, mean, inv_std_var, input_skip_bias_sum
void skip_layer_norm(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape || shape->empty()) return;
  Shape statistics = *shape;
  statistics.back() = 1;
  facts.set_shape(0, *shape);
  facts.set_shape(1, statistics);
  facts.set_shape(2, statistics);
  facts.set_shape(3, *shape);
}

void batch_norm(NodeFacts& facts) {
  if (facts.shape(0)) facts.set_shape(0, *facts.shape(0));
  for (size_t i = 1; i < 5; ++i) {
    if (facts.shape(3)) facts.set_shape(i, *facts.shape(3));
  }
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
    {"Clip", same},
    {"Cos", same},
    {"Cosh", same},
    {"CumSum", same},
    {"Dropout", same_all_outputs},
    {"Elu", same},
    {"Erf", same},
    {"Exp", same},
    {"EyeLike", same},
    {"Floor", same},
    {"Gelu", same},
    {"GroupNormalization", same},
    {"HardSigmoid", same},
    {"HardSwish", same},
    {"Hardmax", same},
    {"Identity", same},
    {"InstanceNormalization", same},
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
    {"PRelu", same},
    {"RMSNormalization", same},
    {"Reciprocal", same},
    {"Relu", same},
    {"ReverseSequence", same},
    {"RotaryEmbedding", same},
    {"Round", same},
    {"ScatterElements", same},
    {"ScatterND", same},
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
    {"TensorScatter", same},
    {"ThresholdedRelu", same},
    {"Trilu", same},
    {"com.microsoft::BiasGelu", same},
    {"com.microsoft::FastGelu", same},
    {"com.microsoft::Gelu", same},
    {"com.microsoft::GroupNorm", same},
    {"com.microsoft::QuickGelu", same},
    {"com.microsoft::RotaryEmbedding", same},
    {"com.microsoft::SkipLayerNormalization", skip_layer_norm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", skip_layer_norm},
    {"tenon::Quantize", same},

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
