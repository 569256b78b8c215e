// Which configs of a GEMM a tuner measures, where the cost model may be wrong.
#pragma once

#include <cstddef>
#include <vector>

#include "codegen/gpu_costs.h"
#include "kernels/llvm/scaled_dot/gemm_config.h"

namespace tenon::kernels {

// Puts `count` of `configs`, which are ranked, before the others: the first one, and those that
// together lose least to the best config by any of many cost models, whose constants are those of
// `costs` times factors between 1/2 and 2. The best few by estimate are often cut almost alike, and
// where a constant is off by two all of them may be slow.
void put_shortlist_first(std::vector<GemmConfig>& configs, size_t count,
                         const codegen::GpuCosts& costs);

}  // namespace tenon::kernels
