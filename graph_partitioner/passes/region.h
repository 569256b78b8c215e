// Parts of a graph that become the body of one fused node.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

// Who reads each value. A snapshot: rewriting the graph outdates it.
class Uses {
 public:
  explicit Uses(const ir::Graph& graph);
  std::span<const ir::NodeId> of(ir::ValueId value) const;  // in order, each node once
  bool is_output(ir::ValueId value) const { return is_output_[value]; }

 private:
  // Of a value: from begins_[value] on, as many as counts_[value].
  std::vector<ir::NodeId> nodes_;
  std::vector<uint32_t> begins_, counts_;
  std::vector<char> is_output_;
};

struct Outlined {
  std::shared_ptr<ir::Graph> body;
  std::vector<ir::ValueId> inputs;  // values of the outer graph, paired with the body's inputs
  std::vector<int> sources;
  std::string name;  // of the last node that has one
};

// Copies `nodes` (in topological order) into a body that gives `outputs`. `first_inputs` come first
// among the body's inputs; the others follow in order of use. Constants of one element are copied
// into the body, larger ones become inputs.
Outlined outline(const ir::Graph& graph, const std::vector<ir::NodeId>& nodes,
                 const std::vector<ir::ValueId>& first_inputs,
                 const std::vector<ir::ValueId>& outputs);

// `fused` takes the place of `nodes` (in topological order) and writes its outputs itself. It
// stands where the last of them stood; the caller removes the dead and mends the order.
void replace_nodes(ir::Graph& graph, const std::vector<ir::NodeId>& nodes, ir::Node fused);

// A node that dissolves lives on in the sources of those that read its result.
void hand_to_readers(ir::Graph& graph, ir::ValueId value, const std::vector<int>& sources);

}  // namespace tenon
