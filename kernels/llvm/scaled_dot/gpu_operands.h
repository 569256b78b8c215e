// What all candidates for a dot on a GPU ask of its operands.
#pragma once

#include "kernels/llvm/scaled_dot/problem.h"

namespace tenon::kernels {

// Rows as they are in memory, where a kernel can read them; otherwise dense_rows makes f32.
bool reads_rows_directly(const ScaledDotProblem& problem);

// Types, rows and epilogue.
Support supports_gpu_dot(const ir::Graph& graph, const ir::Node& node,
                         const DescribedScaledDot& described);

}  // namespace tenon::kernels
