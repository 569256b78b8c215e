// Attention on a GPU: our kernels, and behind them cuDNN's, which reads what our launches put into
// place.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Those of kernels/llvm/attention/gpu_candidates.h, then cudnn_sdpa. A tuner that measures both may
// prefer cuDNN for some rows; without its record ours run.
std::span<const Candidate> attention_candidates_with_cudnn();

}  // namespace tenon::kernels
