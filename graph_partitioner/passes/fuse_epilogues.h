// What is done to a dot's result element by element moves into the dot: bias, activation, gate,
// residual, cast. The result then goes to memory once.
//
//   dot ── Add(bias) ── Mul ── Erf … Mul ── Add(residual) ── y     =>     dot{bias, body} ── y
//
// The region taken in is the largest set of pointwise ops after the dot that has the result's
// shape, whose other operands do not themselves depend on the dot, and of which one value alone is
// seen outside; then whatever is computed element by element for these operands alone. Runs before
// fuse_loops, which would otherwise make a Loop of the same ops.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void fuse_epilogues(ir::Graph& graph);

}  // namespace tenon
