#include "graph_partitioner/passes/share_equal_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "graph_partitioner/ir/collectives.h"

namespace tenon {
namespace {

using ir::Collective;
using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

std::map<std::string, ir::Attribute> without_note(const Node& node) {
  auto attributes = node.attributes;
  attributes.erase("note");
  return attributes;
}

bool are_equal(const Graph& graph, const Node& a, const Node& b) {
  return a.op == b.op && a.inputs == b.inputs && without_note(a) == without_note(b) &&
         graph.value(a.output(0)).dtype == graph.value(b.output(0)).dtype;
}

void add_twin(Node& kept, const Node& twin, int count) {
  kept.sources = ir::merge_sources(kept.sources, twin.sources);
  kept.attributes["note"] = fmt::format("one for {} equal ones", count);
}

}  // namespace

void share_equal_collectives(Graph& graph) {
  std::vector<std::pair<NodeId, int>> kept;  // and how many it stands for
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const Node& node = graph.node(id);
    if (!ir::is_collective(node)) continue;
    const auto first = std::ranges::find_if(
        kept, [&](const auto& one) { return are_equal(graph, graph.node(one.first), node); });
    if (first == kept.end()) {
      kept.emplace_back(id, 1);
      continue;
    }
    const ValueId result = graph.node(first->first).output(0);
    // Two outputs of the graph keep a producer each.
    if (graph.is_output(node.output(0)) && graph.is_output(result)) continue;
    graph.replace_uses(node.output(0), result);
    add_twin(graph.node(first->first), graph.node(id), ++first->second);
    graph.remove_node(id);
  }
}

}  // namespace tenon
