// Norms. Statistics are kept in f32 (the default stash_type) or f64; the result is rounded once, at
// the end.
#include <algorithm>
#include <array>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

constexpr int64_t kOnnxDouble = 11;

using Axes = std::vector<int64_t>;

// The type that statistics are computed in.
ValueId stash(Emitter& emit, const Node& node, ValueId x) {
  const bool wide = node.integer("stash_type", 1) == kOnnxDouble || emit.dtype(x) == DType::kF64;
  return emit.cast(x, wide ? DType::kF64 : DType::kF32);
}

struct Centred {
  ValueId mean = kNoValue;     // kNoValue for norms without one (RMS)
  ValueId inverse = kNoValue;  // 1 / sqrt(variance + epsilon)
  ValueId y = kNoValue;
};

ValueId inverse_deviation(Emitter& emit, ValueId centred, const Axes& axes, double epsilon) {
  const ValueId square = emit.binary("Mul", centred, centred);
  const ValueId variance = emit.reduce("ReduceMean", square, axes);
  return emit.unary("Reciprocal", emit.unary("Sqrt", emit.binary("Add", variance, epsilon)));
}

Centred standardize(Emitter& emit, ValueId x, const Axes& axes, double epsilon) {
  Centred result;
  result.mean = emit.reduce("ReduceMean", x, axes);
  const ValueId centred = emit.binary("Sub", x, result.mean);
  result.inverse = inverse_deviation(emit, centred, axes, epsilon);
  result.y = emit.binary("Mul", centred, result.inverse);
  return result;
}

Centred scale_by_rms(Emitter& emit, ValueId x, const Axes& axes, double epsilon) {
  Centred result;
  result.inverse = inverse_deviation(emit, x, axes, epsilon);
  result.y = emit.binary("Mul", x, result.inverse);
  return result;
}

ValueId scale_and_shift(Emitter& emit, ValueId x, ValueId scale, ValueId shift) {
  const DType type = emit.dtype(x);
  if (scale != kNoValue) x = emit.binary("Mul", x, emit.cast(scale, type));
  if (shift != kNoValue) x = emit.binary("Add", x, emit.cast(shift, type));
  return x;
}

// From `axis` to the last one.
Axes trailing_axes(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  const auto axis = normal_axis(node.integer("axis", -1), shape);
  if (!axis) return {};
  return axes_between(*axis, static_cast<int64_t>(shape->size()));
}

Results layer_norm(Emitter& emit, const Node& node) {
  const Axes axes = trailing_axes(emit, node);
  if (axes.empty()) return {};
  const ValueId x = stash(emit, node, node.input(0));
  const Centred norm = standardize(emit, x, axes, node.number("epsilon", 1e-5f));
  const ValueId y = scale_and_shift(emit, norm.y, node.input(1), node.input(2));
  return {y, norm.mean, norm.inverse};
}

Results rms_norm(Emitter& emit, const Node& node) {
  const Axes axes = trailing_axes(emit, node);
  if (axes.empty()) return {};
  const ValueId x = stash(emit, node, node.input(0));
  const Centred norm = scale_by_rms(emit, x, axes, node.number("epsilon", 1e-5f));
  return {scale_and_shift(emit, norm.y, node.input(1), kNoValue), norm.inverse};
}

constexpr float kSkipEpsilon = 1e-12f;  // com.microsoft's default

// x + skip (+ bias), as it goes on and in the type of statistics, and the last axis. The norm is
// one of the sum that goes on, as ONNX Runtime's CUDA provider has it: so half of the bytes are
// kept.
struct Residual {
  ValueId sum = kNoValue, wide = kNoValue;
  Axes axes;
};

Residual add_residual(Emitter& emit, const Node& node, size_t bias) {
  Residual residual;
  residual.axes = trailing_axes(emit, node);
  if (residual.axes.empty()) return residual;
  const ValueId x = stash(emit, node, node.input(0)), skip = stash(emit, node, node.input(1));
  ValueId sum = emit.binary("Add", x, skip);
  if (node.input(bias) != kNoValue) {
    sum = emit.binary("Add", sum, stash(emit, node, node.input(bias)));
  }
  residual.sum = emit.cast(sum, emit.dtype(node.input(0)));
  residual.wide = emit.cast(residual.sum, emit.dtype(sum));
  return residual;
}

Results skip_layer_norm(Emitter& emit, const Node& node) {
  const Residual residual = add_residual(emit, node, 4);
  if (residual.axes.empty()) return {};
  const Centred norm =
      standardize(emit, residual.wide, residual.axes, node.number("epsilon", kSkipEpsilon));
  const ValueId y = scale_and_shift(emit, norm.y, node.input(2), node.input(3));
  return {y, norm.mean, norm.inverse, residual.sum};
}

Results skip_rms_norm(Emitter& emit, const Node& node) {
  const Residual residual = add_residual(emit, node, 3);
  if (residual.axes.empty()) return {};
  const Centred norm =
      scale_by_rms(emit, residual.wide, residual.axes, node.number("epsilon", kSkipEpsilon));
  const ValueId y = scale_and_shift(emit, norm.y, node.input(2), kNoValue);
  return {y, kNoValue, norm.inverse, residual.sum};
}

Dim product(const Shape& shape, size_t first) {
  Dim result = 1;
  for (size_t axis = first; axis < shape.size(); ++axis) result = result * shape[axis];
  return result;
}

// [N, C, …] -> [N, groups, C/groups, rest]: a group's elements are the last two axes. Scale and
// bias have one element per channel, before opset 21 one per group.
Results group_norm(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  const auto scale_shape = emit.shape(node.input(1));
  const int64_t groups = node.integer("num_groups", 0);
  if (!shape || shape->size() < 2 || groups < 1 || !scale_shape || scale_shape->size() != 1) {
    return {};
  }
  const Dim per_group = floor_div((*shape)[1], Dim(groups));
  if (!((*shape)[1] == per_group * groups)) return {};
  const bool per_channel = (*scale_shape)[0] == (*shape)[1];
  if (!per_channel && !(*scale_shape)[0].is(groups)) return {};
  const Shape own = per_channel ? Shape{groups, per_group, 1} : Shape{groups, 1, 1};
  const ValueId grouped =
      emit.reshape(node.input(0), {(*shape)[0], groups, per_group, product(*shape, 2)});
  const Centred norm =
      standardize(emit, stash(emit, node, grouped), {2, 3}, node.number("epsilon", 1e-5f));
  const ValueId y = scale_and_shift(emit, norm.y, emit.reshape(node.input(1), own),
                                    emit.reshape(node.input(2), own));
  return {emit.reshape(emit.cast(y, emit.dtype(node.input(0))), *shape)};
}

Results instance_norm(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  if (!shape || shape->size() < 2) return {};
  const ValueId flat = emit.reshape(node.input(0), {(*shape)[0], (*shape)[1], product(*shape, 2)});
  const Centred norm =
      standardize(emit, stash(emit, node, flat), {2}, node.number("epsilon", 1e-5f));
  const Shape own{(*shape)[1], 1};
  const ValueId y = scale_and_shift(emit, norm.y, emit.reshape(node.input(1), own),
                                    emit.reshape(node.input(2), own));
  return {emit.reshape(emit.cast(y, emit.dtype(node.input(0))), *shape)};
}

// (x - mean) / sqrt(variance + epsilon) * scale + bias, all per channel and given.
Results batch_norm(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  if (!shape || shape->size() < 2 || node.integer("training_mode", 0) != 0) return {};
  Shape per_channel(shape->size() - 1, Dim(1));
  per_channel[0] = (*shape)[1];
  const ValueId x = stash(emit, node, node.input(0));
  std::array<ValueId, 4> parameters{};  // scale, bias, mean, variance
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] = emit.cast(emit.reshape(node.input(i + 1), per_channel), emit.dtype(x));
  }
  const auto [scale, bias, mean, variance] = parameters;
  const ValueId deviation =
      emit.unary("Sqrt", emit.binary("Add", variance, node.number("epsilon", 1e-5f)));
  const ValueId factor = emit.binary("Div", scale, deviation);
  return {emit.binary("Add", emit.binary("Mul", emit.binary("Sub", x, mean), factor), bias)};
}

Results mean_variance_norm(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  Axes axes;
  for (const int64_t axis : node.has("axes") ? node.integers("axes") : Axes{0, 2, 3}) {
    const auto normal = normal_axis(axis, shape);
    if (!normal) return {};
    axes.push_back(*normal);
  }
  if (axes.empty()) return {};
  std::sort(axes.begin(), axes.end());
  const ValueId x = stash(emit, node, node.input(0));
  const ValueId centred = emit.binary("Sub", x, emit.reduce("ReduceMean", x, axes));
  const ValueId variance = emit.reduce("ReduceMean", emit.binary("Mul", centred, centred), axes);
  const ValueId deviation = emit.binary("Add", emit.unary("Sqrt", variance), 1e-9);
  return {emit.binary("Div", centred, deviation)};
}

// x / |x|_p, and 0 where the norm is 0.
Results lp_norm(Emitter& emit, const Node& node) {
  const auto axis = normal_axis(node.integer("axis", -1), emit.shape(node.input(0)));
  const int64_t p = node.integer("p", 2);
  if (!axis || (p != 1 && p != 2)) return {};
  const ValueId x = emit.widen(node.input(0));
  const ValueId power = p == 1 ? emit.unary("Abs", x) : emit.binary("Mul", x, x);
  ValueId norm = emit.reduce("ReduceSum", power, {*axis});
  if (p == 2) norm = emit.unary("Sqrt", norm);
  const ValueId zero = emit.scalar_like(x, 0.0);
  const ValueId is_zero = emit.compare("Equal", norm, zero);
  return {emit.where(is_zero, zero, emit.binary("Div", x, norm))};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"LayerNormalization", layer_norm},
    {"RMSNormalization", rms_norm},
    {"SimplifiedLayerNormalization", rms_norm},
    {"com.microsoft::SimplifiedLayerNormalization", rms_norm},
    {"com.microsoft::SkipLayerNormalization", skip_layer_norm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", skip_rms_norm},
    {"GroupNormalization", group_norm},
    {"InstanceNormalization", instance_norm},
    {"BatchNormalization", batch_norm},
    {"MeanVarianceNormalization", mean_variance_norm},
    {"LpNormalization", lp_norm},
});

}  // namespace

std::span<const NamedRule> normalization_rules() { return kRules; }

}  // namespace tenon::decomposition
