// Candidates for tenon::ScaledDot on the host, best first.
//
//   int8     the same weights against byte activations, where the model or the user allows them
//   packed   a constant weight in 2, 4 or 8 bits, kept so and dequantised in registers
//   plain    a constant weight expanded to f32 once
//   runtime  b arrives at Run (a product of activations), or products of bytes summed in int32
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> scaled_dot_candidates();
std::span<const Candidate> gpu_scaled_dot_candidates();
// For tenon::MergedDots. A host has none: its kernels cost nothing beside their weights' bytes.
std::span<const Candidate> gpu_merged_dots_candidates();

}  // namespace tenon::kernels
