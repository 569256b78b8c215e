// Dots on a GPU: our kernels, and behind them cuDNN's for two block-scaled operands on Blackwell.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Those of kernels/llvm/scaled_dot.h, then cudnn_block_scaled_dot.
std::span<const Candidate> scaled_dot_candidates_with_cudnn();

}  // namespace tenon::kernels
