// ONNX Runtime quantises the bias of a Conv or Gemm between dequantised operands to int32, in the
// operands' own type:
//   s = Mul(x_scale, w_scale);  DequantizeLinear(Cast(Round(Div(bias, s))), s)
// In 16 bits s sinks among the last subnormals and bias / s beyond the largest number: both are
// computed in float32 here. Before constants fold, for then they are rounded.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void widen_bias_scales(ir::Graph& graph);

}  // namespace tenon
