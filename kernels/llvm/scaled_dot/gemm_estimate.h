// What a GPU GEMM of packed weights is expected to take: bytes, products and dequantising against
// what an SM does in a microsecond.
#pragma once

#include "codegen/gpu_costs.h"
#include "kernels/llvm/scaled_dot/gemm_config.h"

namespace tenon::kernels {

// Microseconds, with the config's own problem.
double estimate_gemm(const GemmConfig& config, const codegen::GpuCosts& costs);

}  // namespace tenon::kernels
