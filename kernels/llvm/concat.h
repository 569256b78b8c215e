// Concat: one launch per input, each copying into its slice of the output.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> concat_candidates();

}  // namespace tenon::kernels
