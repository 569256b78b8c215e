// Ops of any number of operands become chains of binary ones.
#include <array>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

ValueId chain(Emitter& emit, const Node& node, std::string_view op) {
  ValueId result = node.input(0);
  for (size_t i = 1; i < node.inputs.size(); ++i) result = emit.binary(op, result, node.input(i));
  return result;
}

// Exactly two operands: it is the primitive already.
Results smallest(Emitter& emit, const Node& node) {
  if (node.inputs.size() == 2) return {};
  return {chain(emit, node, "Min")};
}

Results largest(Emitter& emit, const Node& node) {
  if (node.inputs.size() == 2) return {};
  return {chain(emit, node, "Max")};
}

Results sum(Emitter& emit, const Node& node) { return {chain(emit, node, "Add")}; }

Results mean(Emitter& emit, const Node& node) {
  const ValueId total = chain(emit, node, "Add");
  return {emit.binary("Div", total, static_cast<double>(node.inputs.size()))};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Min", smallest},
    {"Max", largest},
    {"Sum", sum},
    {"Mean", mean},
});

}  // namespace

std::span<const NamedRule> variadic_rules() { return kRules; }

}  // namespace tenon::decomposition
