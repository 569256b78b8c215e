// A product whose result is only ever read in slices becomes a product for each slice:
//
//   dot(x, W [q + k + v, K]) ── view ── Slice ── q          dot(x, Wq) ── view ── q
//                                   └── Slice ── k    =>    dot(x, Wk) ── view ── k
//                                   └── Slice ── v          dot(x, Wv) ── view ── v
//
// Exporters pack the weights of q, k and v, or of gate and up, into one. merge_dots makes one
// kernel of the parts again, which then writes each result where it belongs, with its own epilogue,
// and the slices are no kernels. Where `supports` says that it could not, the product stays whole.
//
// A constant for each column that is added behind the product is cut with it.
//
// Weights are not copied: rows of [N, K] follow each other, so a part is a piece of its bytes.
//
// Runs before fuse_epilogues, behind hoist_views.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void split_dots(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
