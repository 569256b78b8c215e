// Activations. All are computed in f32 where the tensor is narrower (constants such as 1/sqrt(2)
// would lose bits in f16); decompose() casts the result back.
#include <array>
#include <cmath>
#include <numbers>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

ValueId sigmoid(Emitter& emit, ValueId x) {
  const ValueId decay = emit.unary("Exp", emit.unary("Neg", x));
  return emit.unary("Reciprocal", emit.binary("Add", decay, 1.0));
}

// log(1 + x) for x >= 0, with the digits that 1 + x has no room for: the logarithm is taken where
// the sum was rounded to, at 1 + r, and is as good as linear from there to 1 + x.
ValueId log_of_one_and(Emitter& emit, ValueId x) {
  const ValueId sum = emit.binary("Add", x, 1.0);
  const ValueId rounded = emit.binary("Sub", sum, 1.0);
  const ValueId scaled = emit.binary("Mul", emit.unary("Log", sum), emit.binary("Div", x, rounded));
  return emit.where(emit.compare("Equal", rounded, 0.0), x, scaled);
}

// log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|)).
ValueId softplus(Emitter& emit, ValueId x) {
  const ValueId decay = emit.unary("Exp", emit.unary("Neg", emit.unary("Abs", x)));
  return emit.binary("Add", emit.binary("Max", x, 0.0), log_of_one_and(emit, decay));
}

// exp(x) - 1, scaled.
ValueId exponential_tail(Emitter& emit, ValueId x, double scale) {
  return emit.binary("Mul", emit.binary("Sub", emit.unary("Exp", x), 1.0), scale);
}

ValueId clamp(Emitter& emit, ValueId x, double low, double high) {
  return emit.binary("Min", emit.binary("Max", x, low), high);
}

ValueId gelu_erf(Emitter& emit, ValueId x) {
  const ValueId erf = emit.unary("Erf", emit.binary("Mul", x, 1.0 / std::numbers::sqrt2));
  const ValueId half = emit.binary("Mul", x, 0.5);
  return emit.binary("Mul", half, emit.binary("Add", erf, 1.0));
}

ValueId gelu_tanh(Emitter& emit, ValueId x) {
  const ValueId square = emit.binary("Mul", x, x);
  const ValueId bend = emit.binary("Add", emit.binary("Mul", square, 0.044715), 1.0);
  const double scale = std::sqrt(2.0 * std::numbers::inv_pi);
  const ValueId inner = emit.binary("Mul", emit.binary("Mul", x, bend), scale);
  const ValueId half = emit.binary("Mul", x, 0.5);
  return emit.binary("Mul", half, emit.binary("Add", emit.unary("Tanh", inner), 1.0));
}

ValueId with_bias(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  if (node.input(1) == kNoValue) return x;
  return emit.binary("Add", x, emit.widen(node.input(1)));
}

Results relu(Emitter& emit, const Node& node) { return {emit.binary("Max", node.input(0), 0.0)}; }

Results leaky_relu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId leak = emit.binary("Mul", x, node.number("alpha", 0.01f));
  return {emit.where(emit.compare("Less", x, 0.0), leak, x)};
}

Results prelu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId leak = emit.binary("Mul", x, emit.widen(node.input(1)));
  return {emit.where(emit.compare("Less", x, 0.0), leak, x)};
}

Results elu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId tail = exponential_tail(emit, x, node.number("alpha", 1.0f));
  return {emit.where(emit.compare("Less", x, 0.0), tail, x)};
}

Results selu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId tail = exponential_tail(emit, x, node.number("alpha", 1.67326319217681884765625f));
  const ValueId bent = emit.where(emit.compare("Less", x, 0.0), tail, x);
  return {emit.binary("Mul", bent, node.number("gamma", 1.05070102214813232421875f))};
}

Results celu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const double alpha = node.number("alpha", 1.0f);
  const ValueId tail = exponential_tail(emit, emit.binary("Div", x, alpha), alpha);
  return {emit.where(emit.compare("Less", x, 0.0), tail, x)};
}

Results thresholded_relu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId above = emit.compare("Greater", x, node.number("alpha", 1.0f));
  return {emit.where(above, x, emit.scalar_like(x, 0.0))};
}

Results plain_sigmoid(Emitter& emit, const Node& node) {
  return {sigmoid(emit, emit.widen(node.input(0)))};
}

Results hard_sigmoid(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId line = emit.binary("Add", emit.binary("Mul", x, node.number("alpha", 0.2f)),
                                   node.number("beta", 0.5f));
  return {clamp(emit, line, 0.0, 1.0)};
}

Results hard_swish(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId line = emit.binary("Add", emit.binary("Mul", x, 1.0 / 6.0), 0.5);
  return {emit.binary("Mul", x, clamp(emit, line, 0.0, 1.0))};
}

Results gated_by_sigmoid(Emitter& emit, const Node& node, float alpha) {
  const ValueId x = emit.widen(node.input(0));
  const ValueId inner = alpha == 1.0f ? x : emit.binary("Mul", x, alpha);
  return {emit.binary("Mul", x, sigmoid(emit, inner))};
}

Results swish(Emitter& emit, const Node& node) {
  return gated_by_sigmoid(emit, node, node.number("alpha", 1.0f));
}

Results quick_gelu(Emitter& emit, const Node& node) {
  return gated_by_sigmoid(emit, node, node.number("alpha", 1.702f));
}

Results plain_softplus(Emitter& emit, const Node& node) {
  return {softplus(emit, emit.widen(node.input(0)))};
}

Results softsign(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  return {emit.binary("Div", x, emit.binary("Add", emit.unary("Abs", x), 1.0))};
}

Results mish(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  return {emit.binary("Mul", x, emit.unary("Tanh", softplus(emit, x)))};
}

Results gelu(Emitter& emit, const Node& node) {
  const ValueId x = emit.widen(node.input(0));
  const bool tanh = node.text("approximate", "none") == "tanh";
  return {tanh ? gelu_tanh(emit, x) : gelu_erf(emit, x)};
}

Results bias_gelu(Emitter& emit, const Node& node) {
  return {gelu_erf(emit, with_bias(emit, node))};
}

Results fast_gelu(Emitter& emit, const Node& node) {
  return {gelu_tanh(emit, with_bias(emit, node))};
}

// The bounds are scalars, but exporters also write them as [1].
ValueId as_scalar(Emitter& emit, ValueId x) { return emit.reshape(x, Shape{}); }

Results clip(Emitter& emit, const Node& node) {
  ValueId x = node.input(0);
  if (node.input(1) != kNoValue) x = emit.binary("Max", x, as_scalar(emit, node.input(1)));
  if (node.input(2) != kNoValue) x = emit.binary("Min", x, as_scalar(emit, node.input(2)));
  return {x};
}

Results shrink(Emitter& emit, const Node& node) {
  if (!is_floating(emit.dtype(node.input(0)))) return {};
  const ValueId x = emit.widen(node.input(0));
  const float lambda = node.number("lambd", 0.5f), bias = node.number("bias", 0.0f);
  const ValueId is_high = emit.compare("Greater", x, lambda), less = emit.binary("Sub", x, bias);
  const ValueId high = emit.where(is_high, less, emit.scalar_like(x, 0.0));
  const ValueId is_low = emit.compare("Less", x, -lambda), more = emit.binary("Add", x, bias);
  return {emit.where(is_low, more, high)};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Relu", relu},
    {"LeakyRelu", leaky_relu},
    {"PRelu", prelu},
    {"Elu", elu},
    {"Selu", selu},
    {"Celu", celu},
    {"ThresholdedRelu", thresholded_relu},
    {"Sigmoid", plain_sigmoid},
    {"HardSigmoid", hard_sigmoid},
    {"HardSwish", hard_swish},
    {"Swish", swish},
    {"Softplus", plain_softplus},
    {"Softsign", softsign},
    {"Mish", mish},
    {"Gelu", gelu},
    {"com.microsoft::Gelu", gelu},
    {"com.microsoft::BiasGelu", bias_gelu},
    {"com.microsoft::FastGelu", fast_gelu},
    {"com.microsoft::QuickGelu", quick_gelu},
    {"Clip", clip},
    {"Shrink", shrink},
});

}  // namespace

std::span<const NamedRule> activation_rules() { return kRules; }

}  // namespace tenon::decomposition
