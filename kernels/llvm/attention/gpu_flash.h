// Attention on a GPU: one block computes some queries of one head in one pass over the keys.
//
//   for blocks of keys that some query sees:
//     s[queries][keys] = q x kᵀ              scaled, capped, masked
//     new maximum of each row, p = exp(s - maximum), denominator
//     o[queries][D] = o * exp(old maximum - new) + p x v
//   y = o / denominator
//
// Operands of one 16-bit type are multiplied as they are, p rounded to that type. Everything else
// is split into exact bf16 terms (split_parts.h), which gives what f32 arithmetic would.
#pragma once

#include <span>

#include "kernels/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> gpu_attention_candidates();

}  // namespace tenon::kernels
