// Appending to a cache on a GPU: a block copies some rows of one head.
#pragma once

#include "kernels/llvm/attention/key_cache.h"

namespace tenon::kernels {

Launch gpu_append_launch(const ir::Graph& graph, const AttentionProblem& problem,
                         const CacheAppend& cache);

}  // namespace tenon::kernels
