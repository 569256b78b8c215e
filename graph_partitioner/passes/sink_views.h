// A view of what a reduction made sinks below the arithmetic that is done to it:
//
//   Sub(Reshape[b](ReduceSum(mask) [b,1]), 1)   =>   Reshape[b](Sub(ReduceSum(mask), 1))
//
// Reductions keep their axes, so a view stands behind those that the model wants dropped. A loop
// ends at a view: behind the arithmetic it is one loop, and one launch, instead of two.
//
// Runs before hoist_movement.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void sink_views(ir::Graph& graph);

}  // namespace tenon
