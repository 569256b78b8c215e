// Products of the same rows with weights of the same format become one: q, k and v of an attention,
// gate and up of an MLP.
//
//   dot(x, Wq) ── q                                     dot(x, Wg) ── act ── Mul ── y
//   dot(x, Wk) ── k   =>   MergedDots ── q, k, v        dot(x, Wu) ──────────┘
//   dot(x, Wv) ── v                                                  =>   MergedDots ── y
//
// Where a few rows are multiplied a product costs a fixed time beside its weight's bytes; one
// kernel pays it once, reads x once, and keeps `up` in registers. Whether there is a kernel for the
// merged products is for `supports` to say; where there is none, and on a host, which has no such
// fixed time, they stay apart.
//
// Runs behind fuse_epilogues: each dot keeps the epilogue that it got there.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void merge_dots(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
