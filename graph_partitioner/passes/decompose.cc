#include "graph_partitioner/passes/decompose.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/passes/decompose/rules.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using decomposition::Emitter;
using decomposition::NamedRule;
using decomposition::Results;
using decomposition::Rule;

const std::unordered_map<std::string_view, Rule>& rules_by_op() {
  static const auto* const table = [] {
    auto* rules = new std::unordered_map<std::string_view, Rule>;
    const auto families = std::to_array<std::span<const NamedRule>>({
        decomposition::activation_rules(),
        decomposition::normalization_rules(),
        decomposition::softmax_rules(),
        decomposition::quantization_rules(),
        decomposition::movement_rules(),
        decomposition::position_rules(),
        decomposition::resize_rules(),
        decomposition::grid_sample_rules(),
        decomposition::variadic_rules(),
        decomposition::collective_rules(),
    });
    for (const auto family : families) {
      for (const NamedRule& rule : family) rules->emplace(rule.op, rule.rule);
    }
    return rules;
  }();
  return *table;
}

// Nothing was written: the readers see an operand (Clip without bounds).
bool is_passed_through(const ir::Node& node, ir::ValueId result) {
  return std::find(node.inputs.begin(), node.inputs.end(), result) != node.inputs.end();
}

void replace_outputs(ir::Graph& graph, Emitter& emit, const ir::Node& node, Results results) {
  for (size_t i = 0; i < results.size() && i < node.outputs.size(); ++i) {
    const ir::ValueId old = node.outputs[i];
    if (old == ir::kNoValue || results[i] == ir::kNoValue) continue;
    const ir::ValueId result = emit.cast(results[i], graph.value(old).dtype);
    if (!graph.value(result).shape) graph.value(result).shape = graph.value(old).shape;
    if (is_passed_through(node, result)) hand_to_readers(graph, old, node.sources);
    graph.replace_uses(old, result);
  }
}

// Every output that somebody reads has a result that a node computes: a graph output keeps its name
// only then.
bool is_complete(const ir::Graph& graph, const Emitter& emit, const ir::Node& node,
                 const Results& results) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!emit.is_used(node.outputs[i])) continue;
    if (i >= results.size() || results[i] == ir::kNoValue) return false;
    if (graph.is_output(node.outputs[i]) && graph.producer(results[i]) == nullptr) return false;
  }
  return true;
}

}  // namespace

void decompose(ir::Graph& graph) {
  const std::vector<ir::NodeId> order = graph.order();
  for (const ir::NodeId id : order) {
    const auto found = rules_by_op().find(graph.node(id).op);
    if (found == rules_by_op().end()) continue;
    const ir::Node node = graph.node(id);
    Emitter emit(graph, id);
    Results results = found->second(emit, node);
    if (results.empty() || !is_complete(graph, emit, node, results)) continue;
    replace_outputs(graph, emit, node, std::move(results));
    if (ir::is_imported_collective(node)) graph.remove_node(id);  // never dead by itself
  }
  graph.remove_dead_nodes();
}

}  // namespace tenon
