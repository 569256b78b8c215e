// Shapes of every value, and the elements of small integer tensors as dims, by our own rules.
//
// Why: the runtime often does not know a shape, sometimes not even a rank, and names dims that no
// input has. Kernels need every dim as an expression over the dims of the graph's inputs.
// Why here: before anything looks at shapes, and again after passes that write new nodes.
//
// What a model declares of the results of its nodes is not believed: forget_declared_shapes comes
// first. What passes have set is kept where it says more (a number beats an expression, a dim of
// the inputs beats a dim that no input has). Two numbers that contradict each other leave the shape
// unknown; data-dependent shapes stay unknown; nothing here throws because of what a model
// contains.
//
// What an operator asks of sizes, and only a Run can tell, ends up in the graph's requirements.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/ir/input_symbols.h"

namespace tenon {

void infer_shapes(ir::Graph& graph);

// A declared shape may be older than the model: results of nodes that rules know have none until
// inference gives them one. Those of other nodes are never computed here.
void forget_declared_shapes(ir::Graph& graph);

bool has_shape_rule(std::string_view op);
std::vector<std::string_view> ops_with_shape_rules();  // sorted

// Node by node, for passes that change values on the way (fold_constants).
class ShapeInference {
 public:
  explicit ShapeInference(ir::Graph& graph);
  // No: the model contradicts itself there, and the results have no shape.
  Support infer(ir::NodeId node);

 private:
  void merge_shape(ir::ValueId value, const Shape& inferred) const;
  void forget(const ir::Node& node) const;

  ir::Graph& graph_;
  const ir::InputSymbols input_symbols_;
};

}  // namespace tenon
