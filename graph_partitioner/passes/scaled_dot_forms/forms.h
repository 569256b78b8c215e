// The spellings of a product, by family; match_scaled_dot.cc applies them all.
#pragma once

#include <span>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/rewrite.h"

namespace tenon::scaled_dot_forms {

// MatMul, Gemm, FusedMatMul: operands may be dequantised tensors.
std::span<const NamedRewrite> plain_forms();
// Ops that hold their quantised weight themselves.
std::span<const NamedRewrite> packed_weight_forms();

// The node becomes `dot`; outputs stay.
void write(Rewrite& r, const ir::ScaledDot& dot);

}  // namespace tenon::scaled_dot_forms
