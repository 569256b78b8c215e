// A loop that makes the rows of products, and nothing else, becomes their prologue: the norm before
// q, k and v, before gate and up, before the last product.
//
//   x ── Loop(norm) ── ScaledDot or MergedDots ── y     =>     MergedDots{Loop, dots} ── y
//
// With few rows a kernel of its own costs more than the norm does, so each CTA of the product
// computes it while its weights are on their way. Whether there is a kernel for that is for
// `supports` to say: where there is none, and on a host, the loop stays.
//
// Runs behind merge_dots and fuse_loops, which make the two.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void fuse_prologues(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
