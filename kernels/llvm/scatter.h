// ScatterElements and ScatterND: the data is copied, then elements or rows of it are
// overwritten or added to.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> scatter_elements_candidates();
std::span<const Candidate> scatter_nd_candidates();

}  // namespace tenon::kernels
