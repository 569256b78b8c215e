// Every product of two matrices, quantised or not, becomes one tenon::ScaledDot.
//
//   codes ──┐
//   scale ──DequantizeLinear ── [Cast] ── [Transpose] ── MatMul | Gemm | com.microsoft::FusedMatMul
//   com.microsoft::MatMulNBits, MatMulBlockQuantizedFp4Weight, MatMulBlockQuantizedFp8Weight
//
// Why here: after normalisation, so that quantisers have one spelling, and before `decompose` would
// turn a dequantised weight into arithmetic on a whole matrix.
//
// A scale or zero point that does not fit its operand is left as it is: the DequantizeLinear stays,
// the product becomes a dot of plain numbers. Products of integers are left alone.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void match_scaled_dot(ir::Graph& graph);

}  // namespace tenon
