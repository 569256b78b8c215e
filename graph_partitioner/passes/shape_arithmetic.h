// Shape arithmetic disappears: what it computed stands on the values as dims.
//
// - Reshape and Expand lose their shape operand: the output's shape says it. One that changes
//   nothing is gone.
// - Slice becomes tenon::Slice{starts, steps}, its sizes being the output's shape.
// - An integer tensor whose elements are known as dims and that somebody still reads becomes
//   tenon::ShapeValue{dims}, which the executable writes without a kernel.
//
// Why: kernels take shapes as dims, and a Shape → Gather → Concat chain would cut every partition.
// Why here: after shapes and constants are known and views are normalised, before matching, which
// wants to see `MatMul → Reshape → Transpose` without the chains on the side.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void shape_arithmetic(ir::Graph& graph);

}  // namespace tenon
