// What else of a range is measured, once the plans that it lists were.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tunable_plans.h"

namespace tenon::kernels {

using MorePlans = std::vector<TunablePlan>(const ir::Graph& fused, const TunableFusion& fusion,
                                           const TunableRange& range,
                                           std::span<const double> microseconds, int64_t at_rows,
                                           size_t count);

// `microseconds` of each listed plan at these rows, 0 where it was not measured. Returns `count` at
// most: up to half of them what cost models expect to be faster that agree with these times, then
// what is cut about as the fastest is, for where no such model is right.
MorePlans more_plans;

}  // namespace tenon::kernels
