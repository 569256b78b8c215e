// Ops whose result depends on where an element stands.
#include <array>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

// column - row, over the last two axes of `shape`.
ValueId diagonal(Emitter& emit, const Shape& shape) {
  const Dim rows = shape[shape.size() - 2], columns = shape[shape.size() - 1];
  const ValueId column = emit.position({1, columns}, 1), row = emit.position({rows, 1}, 0);
  return emit.binary("Sub", column, row);
}

Results trilu(Emitter& emit, const Node& node) {
  const ValueId x = node.input(0);
  const auto shape = emit.shape(x);
  if (!shape || shape->size() < 2) return {};
  const ValueId k =
      node.input(1) == kNoValue ? emit.scalar(DType::kI64, 0.0) : emit.reshape(node.input(1), {});
  const bool upper = node.integer("upper", 1) != 0;
  const ValueId kept =
      emit.compare(upper ? "GreaterOrEqual" : "LessOrEqual", diagonal(emit, *shape), k);
  return {emit.where(kept, x, emit.scalar_like(x, 0.0))};
}

Results eye_like(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  if (!shape || shape->size() != 2) return {};
  const auto k = static_cast<double>(node.integer("k", 0));
  const ValueId on = emit.compare("Equal", diagonal(emit, *shape), k);
  return {emit.cast(on, emit.dtype(node.output(0)))};
}

// start + position * delta; shape arithmetic has given the length.
Results range(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.output(0));
  const DType type = emit.dtype(node.output(0));
  if (!shape || shape->size() != 1) return {};
  const ValueId steps = emit.cast(emit.position(*shape, 0), type);
  const ValueId delta = emit.reshape(node.input(2), {}), start = emit.reshape(node.input(0), {});
  return {emit.binary("Add", emit.binary("Mul", steps, delta), start)};
}

// An index out of [-depth, depth) hits no position, nor does a fraction: its row is all "off".
Results one_hot(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.output(0));
  const auto indices = emit.shape(node.input(0));
  const auto values = emit.shape(node.input(2));
  if (!shape || !indices || shape->size() != indices->size() + 1 || !values ||
      values->size() != 1) {
    return {};
  }
  const auto axis = normal_axis(node.integer("axis", -1), shape);
  if (!axis) return {};
  Shape split = *indices, line(shape->size(), Dim(1));
  split.insert(split.begin() + *axis, Dim(1));
  line[*axis] = (*shape)[*axis];
  const DType given = emit.dtype(node.input(0));
  const DType type = is_floating(given) ? given : DType::kI64;
  const ValueId index = emit.cast(emit.reshape(node.input(0), split), type);
  const ValueId depth = emit.dim_value((*shape)[*axis], type);
  const ValueId is_negative = emit.compare("Less", index, 0.0);
  const ValueId wrapped = emit.where(is_negative, emit.binary("Add", index, depth), index);
  const ValueId here = emit.compare("Equal", wrapped, emit.cast(emit.position(line, *axis), type));
  const ValueId off = emit.slice(node.input(2), {0}, {1}, {1});
  const ValueId on = emit.slice(node.input(2), {1}, {1}, {1});
  return {emit.where(here, on, off)};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Trilu", trilu},
    {"EyeLike", eye_like},
    {"Range", range},
    {"OneHot", one_hot},
});

}  // namespace

std::span<const NamedRule> position_rules() { return kRules; }

}  // namespace tenon::decomposition
