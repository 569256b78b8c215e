#include "graph_partitioner/passes/region.h"

#include <algorithm>
#include <utility>

#include "graph_partitioner/ir/primitives.h"

namespace tenon {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

Uses::Uses(const Graph& graph)
    : begins_(graph.value_count(), 0),
      counts_(graph.value_count(), 0),
      is_output_(graph.value_count(), 0) {
  const auto for_each_input = [&](const auto& visit) {
    for (const NodeId id : graph.order()) {
      for (const ValueId input : graph.node(id).inputs) {
        if (input != kNoValue) visit(id, input);
      }
    }
  };
  uint32_t inputs = 0;
  for_each_input([&](NodeId, ValueId input) { ++begins_[input], ++inputs; });
  uint32_t begin = 0;
  for (uint32_t& place : begins_) begin += std::exchange(place, begin);
  nodes_.resize(inputs);
  for_each_input([&](NodeId id, ValueId input) {
    NodeId* users = &nodes_[begins_[input]];
    uint32_t& count = counts_[input];
    if (count == 0 || users[count - 1] != id) users[count++] = id;
  });
  for (const ValueId output : graph.outputs()) is_output_[output] = 1;
}

std::span<const NodeId> Uses::of(ValueId value) const {
  return std::span(nodes_).subspan(begins_[value], counts_[value]);
}

namespace {

class Outliner {
 public:
  Outliner(const Graph& graph, Outlined& result) : graph_(graph), result_(result) {
    result_.body = std::make_shared<Graph>();
  }

  void add_input(ValueId outer) {
    if (inside_.contains(outer)) return;
    const ir::Value& value = graph_.value(outer);
    ir::Value inner;
    inner.name = value.name;
    inner.dtype = value.dtype;
    inner.shape = value.shape;
    inside_[outer] = result_.body->add_input(std::move(inner));
    result_.inputs.push_back(outer);
  }

  void add_node(const Node& outer) {
    Node inner = outer;
    inner.sources.clear();
    for (ValueId& input : inner.inputs) input = read(input);
    for (ValueId& output : inner.outputs) output = write(output);
    result_.body->add_node(std::move(inner));
    result_.sources = ir::merge_sources(result_.sources, outer.sources);
    if (!outer.name.empty()) result_.name = outer.name;
  }

  void add_output(ValueId outer) { result_.body->add_output(inside_.at(outer)); }

 private:
  ValueId read(ValueId outer) {
    if (outer == kNoValue) return kNoValue;
    if (const auto found = inside_.find(outer); found != inside_.end()) return found->second;
    const ir::Value& value = graph_.value(outer);
    if (value.is_constant() && value.constant->elements() == 1) {
      return inside_[outer] = result_.body->add_constant(value.name, value.constant);
    }
    add_input(outer);
    return inside_.at(outer);
  }

  ValueId write(ValueId outer) {
    if (outer == kNoValue) return kNoValue;
    ir::Value inner = graph_.value(outer);
    inner.producer = ir::kNoNode;
    return inside_[outer] = result_.body->add_value(std::move(inner));
  }

  const Graph& graph_;
  Outlined& result_;
  std::unordered_map<ValueId, ValueId> inside_;
};

}  // namespace

Outlined outline(const Graph& graph, const std::vector<NodeId>& nodes,
                 const std::vector<ValueId>& first_inputs, const std::vector<ValueId>& outputs) {
  Outlined result;
  Outliner outliner(graph, result);
  for (const ValueId input : first_inputs) outliner.add_input(input);
  // Indices stay in memory, where they are checked before the kernel runs.
  for (const NodeId id : nodes) {
    const Node& node = graph.node(id);
    if (ir::reads_indices(node.op) && graph.producer(node.input(1)) == nullptr) {
      outliner.add_input(node.input(1));
    }
  }
  for (const NodeId id : nodes) outliner.add_node(graph.node(id));
  for (const ValueId output : outputs) outliner.add_output(output);
  return result;
}

void replace_nodes(Graph& graph, const std::vector<NodeId>& nodes, Node fused) {
  // A node without outputs is dead: nothing of it stands in the way of the new producer.
  for (const NodeId id : nodes) graph.node(id).outputs.clear();
  graph.insert_before(nodes.back(), std::move(fused));
}

void hand_to_readers(Graph& graph, ValueId value, const std::vector<int>& sources) {
  for (const NodeId id : graph.consumers(value)) {
    graph.node(id).sources = ir::merge_sources(graph.node(id).sources, sources);
  }
}

}  // namespace tenon
