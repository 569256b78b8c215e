// Candidates for tenon::PagedAttention, on the host and on GPUs alike:
//
//   pages   new keys and values go to their slots, then a task for each token and head walks the
//           pages of its sequence with a running maximum
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> paged_attention_candidates();

}  // namespace tenon::kernels
