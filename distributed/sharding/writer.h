// Writes nodes of the sharding pass.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

// Writes nodes in front of or behind one of the graph, in its name.
class Writer {
 public:
  static Writer before(ir::Graph& graph, ir::NodeId id) { return {graph, id, id}; }
  static Writer behind(ir::Graph& graph, ir::NodeId id) {
    const auto& order = graph.order();
    const auto next = std::ranges::find(order, id) + 1;
    return {graph, id, next == order.end() ? ir::kNoNode : *next};
  }

  // A result of its own.
  ir::ValueId write(std::string op, std::vector<ir::ValueId> inputs, DType dtype, Shape shape,
                    std::map<std::string, ir::Attribute> attributes = {}) {
    const ir::ValueId result = value(dtype, std::move(shape));
    write_to(result, std::move(op), std::move(inputs), std::move(attributes));
    return result;
  }
  void write_to(ir::ValueId result, std::string op, std::vector<ir::ValueId> inputs,
                std::map<std::string, ir::Attribute> attributes = {}) {
    ir::Node node;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    insert(std::move(node), result);
  }
  void write_to(ir::ValueId result, const ir::Collective& collective, ir::ValueId input) {
    ir::Node node;
    collective.write_to(node);
    node.inputs = {input};
    insert(std::move(node), result);
  }
  ir::ValueId value(DType dtype, Shape shape) {
    ir::Value fresh;
    fresh.name = base_;
    fresh.dtype = dtype;
    fresh.shape = std::move(shape);
    return graph_.add_value(std::move(fresh));
  }

 private:
  Writer(ir::Graph& graph, ir::NodeId like, ir::NodeId position)
      : graph_(graph), position_(position) {
    const ir::Node& node = graph.node(like);
    name_ = node.name;
    sources_ = node.sources;
    base_ = graph.value(node.output(0)).name;
  }

  void insert(ir::Node node, ir::ValueId result) {
    node.name = name_;
    node.sources = sources_;
    node.outputs = {result};
    position_ == ir::kNoNode ? graph_.add_node(std::move(node))
                             : graph_.insert_before(position_, std::move(node));
  }

  ir::Graph& graph_;
  ir::NodeId position_;
  std::string name_, base_;
  std::vector<int> sources_;
};

}  // namespace tenon::distributed
