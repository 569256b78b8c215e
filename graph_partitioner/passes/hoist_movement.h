// Movement ops are hoisted above the arithmetic that feeds them, up to where their elements come
// from:
//
//   Gather(Mul(Cast(w), BlockExpand(s)), i)   =>   Mul(Cast(Gather(w, i)), Gather(BlockExpand(s),
//   i)) BlockExpand(Mul(Cast(s), g))              =>   Mul(Cast(BlockExpand(s)), g)
//   Reshape(Reshape(x))                       =>   Reshape(x)
//
// A loop reads through index maps but cannot move what it computes, so this turns two loops into
// one; a quantised table is dequantised by the rows that are picked, never as a whole. Only whole
// chains are hoisted: where a reduction or a second reader stands in the way nothing would be
// gained.
//
// Runs right before fuse_loops.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void hoist_movement(ir::Graph& graph);

}  // namespace tenon
