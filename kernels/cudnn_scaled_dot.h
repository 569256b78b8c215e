// Dots on a GPU: our kernels, and beside them cuDNN's for two block-scaled operands on Blackwell.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Those of kernels/llvm/scaled_dot.h; cudnn_block_scaled_dot stands behind the kernels that copy
// ahead and before those that would dequantise the left side first.
std::span<const Candidate> scaled_dot_candidates_with_cudnn();
// The same for tenon::MergedDots: only one dot by itself is cuDNN's.
std::span<const Candidate> merged_dots_candidates_with_cudnn();

}  // namespace tenon::kernels
