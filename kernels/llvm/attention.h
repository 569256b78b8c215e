// Candidates for tenon::Attention on the host.
//
//   one_pass   one pass over the keys with a running maximum; no score matrix
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> attention_candidates();

}  // namespace tenon::kernels
