#include "graph_partitioner/passes/fuse_prologues.h"

#include <algorithm>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// What is not reduced is cheaper as the epilogue of what made it.
bool reduces(const Node& loop) {
  return std::ranges::any_of(loop.body->order(), [&](NodeId id) {
    const ir::Primitive* primitive = ir::find_primitive(loop.body->node(id).op);
    return primitive != nullptr && primitive->kind == ir::PrimitiveClass::kReduction;
  });
}

// The one node of products whose rows the loop makes; kNoNode where somebody else reads it too.
NodeId reader_of_rows(const Graph& graph, const Node& loop) {
  if (loop.outputs.size() != 1) return ir::kNoNode;
  const ValueId rows = loop.output(0);
  const std::vector<NodeId> readers = graph.consumers(rows);
  if (graph.is_output(rows) || readers.size() != 1) return ir::kNoNode;
  const Node& reader = graph.node(readers[0]);
  const bool multiplies = reader.is(ir::kScaledDot) || reader.is(ir::kMergedDots);
  const bool once = std::ranges::count(reader.inputs, rows) == 1 && reader.input(0) == rows;
  return multiplies && once ? readers[0] : ir::kNoNode;
}

ir::MergedDots products_of(const Node& node) {
  if (node.is(ir::kMergedDots)) return ir::MergedDots::from(node);
  ir::MergedDots alone;
  alone.dots = {node};
  return alone;
}

}  // namespace

void fuse_prologues(Graph& graph, const SupportsFn& supports) {
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    const Node loop = graph.node(id);
    if (!ir::is_loop(loop) || !reduces(loop)) continue;
    const NodeId reader = reader_of_rows(graph, loop);
    if (reader == ir::kNoNode) continue;
    ir::MergedDots products = products_of(graph.node(reader));
    if (products.prologue) continue;
    products.prologue = loop;
    Node fused;
    products.write_to(fused, graph);
    if (!supports(graph, fused)) continue;
    // What loops and products that were one node already are made of.
    fused.sources = ir::merge_sources(loop.sources, graph.node(reader).sources);
    fused.name = graph.node(reader).name;
    replace_nodes(graph, {id, reader}, std::move(fused));
  }
  graph.remove_dead_nodes();
  graph.sort_topologically();
}

}  // namespace tenon
