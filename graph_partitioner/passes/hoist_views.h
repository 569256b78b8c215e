// A view of a dot's result is hoisted to the dot's operand:
//
//   Reshape[b,s,N](dot(x [b*s,K], w))   =>   dot(Reshape[b,s,K](x), w)
//
// Exporters flatten tokens around each linear layer. With the views on the operand's side they
// cancel against each other, and what follows the dot is its epilogue.
//
// Runs before fuse_epilogues.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void hoist_views(ir::Graph& graph);

}  // namespace tenon
