// How a cut goes through a node: which operands must be cut how so that the result is cut, and what
// becomes of a cut operand.
#pragma once

#include <optional>
#include <vector>

#include "distributed/sharding/cut.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

struct OperandCut {
  size_t operand = 0;  // index among the node's inputs
  Cut cut;
};

// For pointwise ops, reductions over other dims, and views that keep the cut dim whole. Operands
// that are broadcast along the cut dim are not listed. nullopt: the node needs its operands whole.
std::optional<std::vector<OperandCut>> operands_for(const ir::Graph& graph, const ir::Node& node,
                                                    const Cut& result);

// The other way round; nullopt where operands_for would not give `cut` back.
std::optional<Cut> result_for(const ir::Graph& graph, const ir::Node& node, size_t operand,
                              const Cut& cut);

// A slice along the cut dim takes a part of it, with every index in between.
struct SlicedPart {
  int64_t start = 0, count = 0;
};
std::optional<SlicedPart> sliced_part(const ir::Graph& graph, const ir::Node& node, size_t axis);

}  // namespace tenon::distributed
