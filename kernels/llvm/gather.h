// GatherElements and GatherND: reads whose addresses come from a tensor of indices.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> gather_elements_candidates();
std::span<const Candidate> gather_nd_candidates();

}  // namespace tenon::kernels
