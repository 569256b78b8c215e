// tenon::Loop as one tile kernel: pointwise and reduction chains of any shape, with data movement
// on the way in.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> loop_candidates();

}  // namespace tenon::kernels
