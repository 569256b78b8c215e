#include "graph_partitioner/passes/sink_views.h"

#include <algorithm>

#include "graph_partitioner/ir/primitives.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::PrimitiveClass;
using ir::ValueId;

// Arithmetic of the view and of single numbers, which fit whatever the view looks at.
bool keeps_shape(const Graph& graph, const Node& node, ValueId view) {
  if (!ir::is_primitive(node.op, PrimitiveClass::kPointwise) || node.outputs.size() != 1) {
    return false;
  }
  return std::ranges::all_of(node.inputs, [&](ValueId input) {
    if (input == view) return true;
    return input != ir::kNoValue && graph.value(input).shape && graph.value(input).shape->empty();
  });
}

// Exchanges a view and the one node that reads it; returns where the view is now.
NodeId exchange(Graph& graph, NodeId view_id, NodeId reader_id) {
  const Node view = graph.node(view_id);
  Node arithmetic = graph.node(reader_id);
  ir::Value unseen;
  unseen.name = graph.value(arithmetic.output(0)).name;
  unseen.dtype = graph.value(arithmetic.output(0)).dtype;
  unseen.shape = graph.value(view.input(0)).shape;
  const ValueId result = graph.add_value(std::move(unseen));
  std::ranges::replace(arithmetic.inputs, view.output(0), view.input(0));
  arithmetic.outputs = {result};
  graph.insert_before(reader_id, std::move(arithmetic));

  Node sunk = view;
  sunk.inputs = {result};
  sunk.outputs = graph.node(reader_id).outputs;
  graph.node(reader_id) = std::move(sunk);
  graph.remove_node(view_id);
  return reader_id;
}

void sink(Graph& graph, NodeId view_id) {
  const Node* made = graph.producer(graph.node(view_id).input(0));
  if (made == nullptr || !ir::is_primitive(made->op, PrimitiveClass::kReduction) ||
      !graph.has_one_use(made->output(0))) {
    return;
  }
  while (true) {
    const ValueId seen = graph.node(view_id).output(0);
    if (!graph.has_one_use(seen)) return;
    const NodeId reader = graph.consumers(seen).front();
    if (!keeps_shape(graph, graph.node(reader), seen)) return;
    view_id = exchange(graph, view_id, reader);
  }
}

}  // namespace

void sink_views(Graph& graph) {
  const std::vector<NodeId> order = graph.order();
  std::vector<NodeId> views;
  std::ranges::copy_if(order, std::back_inserter(views), [&](NodeId id) {
    return graph.node(id).is("Reshape") && graph.node(id).inputs.size() == 1;
  });
  for (const NodeId view : views) sink(graph, view);
}

}  // namespace tenon
