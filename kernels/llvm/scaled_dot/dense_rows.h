// The left operand as the dot skeletons want it: f32, [rows, K], contiguous. Anything else (16-bit,
// quantised with scales, transposed) is expanded by one launch into scratch first; that costs
// M * K, the dot M * K * N.
#pragma once

#include "kernels/lowered.h"
#include "kernels/llvm/scaled_dot/problem.h"

namespace tenon::kernels {

bool has_float_rows(DType dtype);  // floats that need no scale to be numbers

Support supports_dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem);
// Where the rows are; adds a launch and scratch to `lowered` where they must be made.
BufferArgument dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem,
                          Lowered& lowered);

}  // namespace tenon::kernels
