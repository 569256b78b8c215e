#include <array>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

struct Softmax {
  ValueId shifted;  // x - max(x)
  ValueId exponential;
  ValueId sum;
};

// Before opset 13 the op flattened its input to two dims at `axis`, so it ran over all axes from
// there on.
std::vector<int64_t> softmax_axes(Emitter& emit, const Node& node) {
  const bool flattens = node.since_version > 0 && node.since_version < 13;
  const auto shape = emit.shape(node.input(0));
  const auto axis = normal_axis(node.integer("axis", flattens ? 1 : -1), shape);
  if (!axis) return {};
  return axes_between(*axis, flattens ? static_cast<int64_t>(shape->size()) : *axis + 1);
}

Softmax parts(Emitter& emit, ValueId x, const std::vector<int64_t>& axes) {
  Softmax parts;
  parts.shifted = emit.binary("Sub", x, emit.reduce("ReduceMax", x, axes));
  parts.exponential = emit.unary("Exp", parts.shifted);
  parts.sum = emit.reduce("ReduceSum", parts.exponential, axes);
  return parts;
}

Results softmax(Emitter& emit, const Node& node) {
  const auto axes = softmax_axes(emit, node);
  if (axes.empty()) return {};
  const Softmax p = parts(emit, emit.widen(node.input(0)), axes);
  return {emit.binary("Div", p.exponential, p.sum)};
}

Results log_softmax(Emitter& emit, const Node& node) {
  const auto axes = softmax_axes(emit, node);
  if (axes.empty()) return {};
  const Softmax p = parts(emit, emit.widen(node.input(0)), axes);
  return {emit.binary("Sub", p.shifted, emit.unary("Log", p.sum))};
}

// 1 where the largest element stands first, 0 elsewhere.
Results hardmax(Emitter& emit, const Node& node) {
  const auto axes = softmax_axes(emit, node);
  const auto shape = emit.shape(node.input(0));
  if (axes.size() != 1) return {};
  const ValueId winner = emit.reduce("ArgMax", node.input(0), axes);
  Shape line(shape->size(), Dim(1));
  line[axes[0]] = (*shape)[axes[0]];
  const ValueId here = emit.compare("Equal", emit.position(line, axes[0]), winner);
  return {emit.cast(here, emit.dtype(node.input(0)))};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Softmax", softmax},
    {"LogSoftmax", log_softmax},
    {"Hardmax", hardmax},
});

}  // namespace

std::span<const NamedRule> softmax_rules() { return kRules; }

}  // namespace tenon::decomposition
