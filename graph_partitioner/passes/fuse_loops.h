// Primitives become Loops: each one kernel with no intermediate in memory.
//
// Greedy: every primitive starts as a loop of its own; in topological order each joins the loops
// that produce its operands, as long as the joint body is a legal loop (tiling/index_map.h), no
// path through another node would become a cycle, and nothing expensive is computed more often than
// before. Softmax, a norm, a Gelu chain or a dequantisation end as one Loop each.
//
// Runs last: whatever a dot or an attention wanted is inside of it by now.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void fuse_loops(ir::Graph& graph);

}  // namespace tenon
