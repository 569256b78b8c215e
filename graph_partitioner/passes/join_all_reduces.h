// Two sums over ranks that are only added become one of the sum: AllReduce(a) + AllReduce(b) is
// AllReduce(a + b). An attention and an MLP side by side need one exchange then, not two.
//
// Floats are rounded in another order than before, but by every rank alike.
//
// Runs behind the sharding pass, which inserts collectives, and before anything is fused.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void join_all_reduces(ir::Graph& graph);

}  // namespace tenon
