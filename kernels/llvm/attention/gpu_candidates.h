// The kernels that compute attention on a GPU, put together: runs of few queries and of many have
// kernels of their own, each idle where the other has the queries.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> gpu_attention_candidates();

}  // namespace tenon::kernels
