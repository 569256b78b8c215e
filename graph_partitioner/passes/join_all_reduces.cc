#include "graph_partitioner/passes/join_all_reduces.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "graph_partitioner/ir/collectives.h"

namespace tenon {
namespace {

using ir::Collective;
using ir::Graph;
using ir::kNoNode;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// The sum over ranks that only this node reads; kNoNode: it is none.
NodeId sum_read_once(const Graph& graph, ValueId value) {
  if (value == kNoValue || !graph.has_one_use(value)) return kNoNode;
  const Node* producer = graph.producer(value);
  if (producer == nullptr || producer->op != ir::kAllReduce) return kNoNode;
  return Collective::from(*producer).reduction == "sum" ? graph.value(value).producer : kNoNode;
}

bool fit_together(const Graph& graph, const Node& a, const Node& b) {
  const Collective one = Collective::from(a), other = Collective::from(b);
  const ir::Value &x = graph.value(a.output(0)), &y = graph.value(b.output(0));
  return one.groups == other.groups && one.ranks == other.ranks && x.dtype == y.dtype && x.shape &&
         y.shape && *x.shape == *y.shape;
}

void join(Graph& graph, NodeId sum, NodeId first, NodeId second) {
  const ValueId a = graph.node(first).input(0), b = graph.node(second).input(0);
  ir::Value added;
  added.name = graph.value(b).name + ".joined";
  added.dtype = graph.value(b).dtype;
  added.shape = graph.value(graph.node(second).output(0)).shape;
  Node add;
  add.op = "Add";
  add.since_version = graph.node(sum).since_version;
  add.name = graph.node(sum).name;
  add.sources = graph.node(sum).sources;
  add.inputs = {a, b};
  add.outputs = {graph.add_value(std::move(added))};
  const ValueId local_sum = add.outputs[0];
  graph.insert_before(second, std::move(add));

  Node& kept = graph.node(second);
  kept.inputs = {local_sum};
  kept.sources = ir::merge_sources(ir::merge_sources(kept.sources, graph.node(first).sources),
                                   graph.node(sum).sources);
  Collective collective = Collective::from(kept);
  collective.note = "of a sum, instead of a sum of two";
  collective.write_to(kept);
  graph.replace_uses(graph.node(sum).output(0), kept.output(0));
  graph.remove_node(sum);
  graph.remove_node(first);
}

}  // namespace

void join_all_reduces(Graph& graph) {
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    if (!graph.node(id).is("Add")) continue;
    NodeId first = sum_read_once(graph, graph.node(id).input(0));
    NodeId second = sum_read_once(graph, graph.node(id).input(1));
    if (first == kNoNode || second == kNoNode || first == second) continue;
    if (!fit_together(graph, graph.node(first), graph.node(second))) continue;
    const std::vector<NodeId>& order = graph.order();
    if (std::ranges::find(order, second) < std::ranges::find(order, first)) {
      std::swap(first, second);
    }
    join(graph, id, first, second);
  }
}

}  // namespace tenon
