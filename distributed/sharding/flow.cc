#include "distributed/sharding/flow.h"

#include <algorithm>

#include "graph_partitioner/ir/primitives.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;
using OperandCuts = std::optional<std::vector<OperandCut>>;

const Shape* shape_of(const Graph& graph, ValueId id) {
  if (id == kNoValue || !graph.value(id).shape) return nullptr;
  return &*graph.value(id).shape;
}

// Operands broadcast from the right, as ONNX aligns them.
OperandCuts broadcast_operands(const Graph& graph, const Node& node, const Cut& result) {
  const Shape& whole = *shape_of(graph, node.output(0));
  std::vector<OperandCut> cuts;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) continue;
    const Shape* own = shape_of(graph, node.inputs[i]);
    if (own == nullptr || own->size() > whole.size()) return std::nullopt;
    const size_t missing = whole.size() - own->size();
    if (result.axis < missing || (*own)[result.axis - missing].is(1)) continue;
    if (!((*own)[result.axis - missing] == whole[result.axis])) return std::nullopt;
    cuts.push_back({i, result.along(result.axis - missing)});
  }
  return cuts;
}

Dim product(const Shape& shape, size_t begin, size_t end) {
  Dim all = 1;
  for (size_t axis = begin; axis < end; ++axis) all = all * shape[axis];
  return all;
}

// The cut of `from` as one of `to`, which has the same elements in the same order: [.., H, D] and
// [.., H * D].
std::optional<Cut> viewed(const Shape& from, const Shape& to, const Cut& cut) {
  const Dim before = product(from, 0, cut.axis);
  const Dim step = product(from, cut.axis + 1, from.size());
  for (size_t axis = 0; axis < to.size(); ++axis) {
    if (!(product(to, 0, axis) == before) || to[axis].is(1)) continue;
    const Dim other = product(to, axis + 1, to.size());
    if (other == step) return cut.along(axis);
    if (!other.is_constant() || !step.is_constant()) return std::nullopt;
    const auto shares = divided(times(cut.shares, step.value()), other.value());
    if (!shares) return std::nullopt;
    return Cut{axis, *shares};
  }
  return std::nullopt;
}

OperandCuts one_operand(std::optional<Cut> cut) {
  if (!cut) return std::nullopt;
  return std::vector<OperandCut>{{0, std::move(*cut)}};
}

OperandCuts movement_operands(const Graph& graph, const Node& node, const Cut& result) {
  const Shape* from = shape_of(graph, node.input(0));
  const Shape& to = *shape_of(graph, node.output(0));
  if (from == nullptr) return std::nullopt;
  if (node.is("Transpose")) {
    const auto perm = node.integers("perm");
    return one_operand(result.along(static_cast<size_t>(perm.at(result.axis))));
  }
  if (node.inputs.size() != 1) return std::nullopt;
  if (node.is("Reshape")) return one_operand(viewed(to, *from, result));
  if (node.is("Expand")) return broadcast_operands(graph, node, result);
  if (node.is("tenon::Slice")) {
    const auto part = sliced_part(graph, node, result.axis);
    const bool is_whole = part && part->start == 0 && (*from)[result.axis].is(part->count);
    return is_whole ? one_operand(result) : std::nullopt;
  }
  return std::nullopt;
}

bool reduces(const Graph& graph, const Node& node, size_t axis) {
  if (node.integer("keepdims", 1) == 0) return true;
  const auto rank = static_cast<int64_t>(shape_of(graph, node.output(0))->size());
  std::vector<int64_t> axes = node.integers("axes");
  if (node.has("axis")) axes.push_back(node.integer("axis", 0));
  return axes.empty() || std::ranges::any_of(axes, [&](int64_t reduced) {
           return (reduced + rank) % rank == static_cast<int64_t>(axis);
         });
}

OperandCuts concat_operands(const Graph& graph, const Node& node, const Cut& result) {
  const auto rank = static_cast<int64_t>(shape_of(graph, node.output(0))->size());
  const int64_t axis = (node.integer("axis", 0) + rank) % rank;
  if (axis == static_cast<int64_t>(result.axis)) return std::nullopt;
  return broadcast_operands(graph, node, result);
}

}  // namespace

OperandCuts operands_for(const Graph& graph, const Node& node, const Cut& result) {
  if (node.outputs.size() != 1 || shape_of(graph, node.output(0)) == nullptr) return std::nullopt;
  if (node.is("Concat")) return concat_operands(graph, node, result);
  const ir::Primitive* primitive = ir::find_primitive(node.op);
  if (primitive == nullptr || node.inputs.empty()) return std::nullopt;
  switch (primitive->kind) {
    case ir::PrimitiveClass::kPointwise:
      return broadcast_operands(graph, node, result);
    case ir::PrimitiveClass::kReduction:
      if (node.inputs.size() != 1 || reduces(graph, node, result.axis)) return std::nullopt;
      return one_operand(result);
    case ir::PrimitiveClass::kMovement:
      return movement_operands(graph, node, result);
  }
  return std::nullopt;
}

std::optional<Cut> result_for(const Graph& graph, const Node& node, size_t operand,
                              const Cut& cut) {
  const Shape* from = shape_of(graph, node.input(operand));
  const Shape* to = shape_of(graph, node.output(0));
  if (from == nullptr || to == nullptr) return std::nullopt;
  std::optional<Cut> result;
  if (node.is("Reshape")) {
    result = viewed(*from, *to, cut);
  } else if (node.is("Transpose")) {
    const auto perm = node.integers("perm");
    const auto place = std::ranges::find(perm, static_cast<int64_t>(cut.axis));
    result = cut.along(static_cast<size_t>(place - perm.begin()));
  } else if (from->size() <= to->size()) {
    result = cut.along(cut.axis + to->size() - from->size());
  }
  if (!result) return std::nullopt;
  const auto read = operands_for(graph, node, *result);
  const bool reads_it = read && std::ranges::any_of(*read, [&](const OperandCut& other) {
                          return other.operand == operand && other.cut == cut;
                        });
  return reads_it ? result : std::nullopt;
}

std::optional<SlicedPart> sliced_part(const Graph& graph, const Node& node, size_t axis) {
  if (!node.is("tenon::Slice") || node.inputs.size() != 1) return std::nullopt;
  const Shape* to = shape_of(graph, node.output(0));
  const auto starts = node.texts("starts");
  const auto steps = node.integers("steps");
  if (to == nullptr || axis >= to->size() || steps.at(axis) != 1) return std::nullopt;
  const Dim start = Dim::parse(starts.at(axis));
  if (!start.is_constant() || !(*to)[axis].is_constant()) return std::nullopt;
  return SlicedPart{start.value(), (*to)[axis].value()};
}

}  // namespace tenon::distributed
