// What is gathered to be quantised is quantised first, so that codes travel: an AllGather whose
// result is only read through pointwise ops with constants of one element gives the same bits
// behind them, and where they lead to a narrower type fewer bytes. Transposes and reshapes on the
// way stay behind the gather.
//
// Scales that are computed from what is gathered need all of it, or blocks that no rank shares:
// those stay. So do types of less than a byte, of which ranks exchange whole bytes only.
//
// Runs behind the sharding pass, which inserts collectives, once ops are primitives.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void narrow_gathers(ir::Graph& graph);

}  // namespace tenon
