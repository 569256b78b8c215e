// TensorScatter: new rows into a cache, each batch row at its own position.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> tensor_scatter_candidates();

}  // namespace tenon::kernels
