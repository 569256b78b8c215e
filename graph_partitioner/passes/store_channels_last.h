// Convolutions that run faster over channels that are stored last get them so, and everything
// between two of them follows:
//
//   Conv ── Relu ── MaxPool ── Conv   =>
//   Transpose ── ChannelsLastConv ── Relu ── Max of slices ── ChannelsLastConv ── Transpose
//
// A library whose kernels read channels last would turn every tensor around, twice for each
// convolution. Whether a convolution wants it `supports` says: it answers for the kind of GPU, the
// type and the precision. Arithmetic, reductions, Concat, Gather, Slice and Pad take the order that
// their operands have; where a full operand has the other one they stay as they are.
//
// A few channels at the edge (an image's three) are filled up with zeros by the kernel that turns
// them around: tensor cores read 16 bytes at once.
//
// Runs behind decompose, which leaves only primitives between convolutions.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void store_channels_last(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
