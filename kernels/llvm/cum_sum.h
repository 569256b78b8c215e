// CumSum: running sums along one axis, lanes along the axes after it.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> cum_sum_candidates();

}  // namespace tenon::kernels
