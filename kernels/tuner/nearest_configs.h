// Configs that are cut about as another one is: what is worth a try beside the fastest, whether or
// not the cost model is right.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

// Places in `kernels` of those near `to`, the nearest first: one number four times as large is
// still near, or two that are twice as large.
std::vector<size_t> nearest_configs(const KernelConfig& to, std::span<const PlannedKernel> kernels);

}  // namespace tenon::kernels
