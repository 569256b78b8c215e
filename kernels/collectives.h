// Collectives: calls of a communicator, one per node.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> collective_candidates();

}  // namespace tenon::kernels
