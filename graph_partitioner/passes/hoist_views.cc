#include "graph_partitioner/passes/hoist_views.h"

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/free_rows.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::ValueId;

bool is_view(const Node& node) { return node.is("Reshape") && node.inputs.size() == 1; }

bool hoist(Graph& graph, NodeId view_id) {
  const Node view = graph.node(view_id);
  const ValueId result = view.input(0);
  const NodeId dot_id = graph.value(result).producer;
  if (dot_id == ir::kNoNode || !graph.node(dot_id).is(ir::kScaledDot) ||
      !graph.has_one_use(result)) {
    return false;
  }
  const auto& from = graph.value(result).shape;
  const auto& to = graph.value(view.output(0)).shape;
  ScaledDot dot = ScaledDot::from(graph.node(dot_id));
  // A vector is no left operand of a dot.
  if (!from || !to || from->empty() || to->size() < 2 || !(from->back() == to->back()) ||
      !has_free_rows(graph, graph.node(dot_id), dot)) {
    return false;
  }
  ir::Value operand;
  operand.name = graph.value(dot.a).name;
  operand.dtype = graph.value(dot.a).dtype;
  operand.shape = *to;
  operand.shape->back() = graph.value(dot.a).shape->back();
  Node moved;
  moved.op = "Reshape";
  moved.name = view.name;
  moved.sources = view.sources;
  moved.inputs = {dot.a};
  dot.a = graph.add_value(std::move(operand));
  moved.outputs = {dot.a};
  graph.insert_before(dot_id, std::move(moved));

  graph.node(view_id).outputs.clear();
  Node& changed = graph.node(dot_id);
  dot.write_to(changed);
  changed.outputs = view.outputs;
  changed.sources = ir::merge_sources(changed.sources, view.sources);
  graph.value(view.output(0)).producer = dot_id;
  graph.value(result).producer = ir::kNoNode;
  return true;
}

}  // namespace

void hoist_views(Graph& graph) {
  graph.remove_dead_nodes();
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (is_view(graph.node(id)) && hoist(graph, id)) graph.remove_dead_nodes();
  }
}

}  // namespace tenon
