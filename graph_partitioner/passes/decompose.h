// Composite ops become primitives, so that every spelling of a norm, an activation or a
// dequantisation fuses alike and a kernel emitter knows a few dozen ops only.
//
// Runs after the matchers: a dequantised weight that a dot has taken is gone by then.
// What a rule cannot express (unknown rank, training mode, …) stays as it is.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void decompose(ir::Graph& graph);

}  // namespace tenon
