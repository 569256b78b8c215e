// Exporters and opsets spell one thing in many ways; after this pass there is one way.
//
// Why here: before shape arithmetic and the matchers, which then know one spelling each. It runs
// again after shape arithmetic, for the nodes whose shapes were not known the first time.
//
// - Nodes that do nothing are gone; what only changes the shape is a Reshape with one input.
// - Reductions have a sorted `axes` attribute and keepdims=1; L1, L2 and the like are sums.
// - Attributes that became inputs are inputs; axes are non-negative; Cast takes its target from the
//   output's type.
// - Quantisers of every domain are QuantizeLinear and DequantizeLinear with axis, block_size and
//   scale_type, which names the type that uint8 scales stand for.
//
// Ops that are others put together (norms, activations, variadic sums) are `decompose`'s.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void normalize(ir::Graph& graph);

}  // namespace tenon
