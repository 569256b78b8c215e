// What several layers compute alike is computed once: position ids, rows of rotary tables, lengths
// of sequences, a mask that every attention reads.
//
// Only values that go to memory anyway are shared: results of expensive ops and of Gather, and
// operands of what is no primitive (a dot, an attention). A cheap op that is written twice stays
// twice, since each copy fuses into its own reader.
//
// Runs once ops are primitives and before they are fused.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void share_equal_values(ir::Graph& graph);

}  // namespace tenon
