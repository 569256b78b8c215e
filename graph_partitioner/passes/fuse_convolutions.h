// What stands behind a convolution and is added to it or cuts it at 0 goes into it:
//
//   Conv(x, w, b) ── Add(z) ── Relu   =>   com.microsoft::FusedConv(x, w, b, z) {activation="Relu"}
//
// A library that convolves does both on the way; a kernel of ours would read and write the result
// once more. Where `supports` says that nobody runs the whole, less is taken, or nothing.
//
// Runs before decompose, which dissolves Relu.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void fuse_convolutions(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
