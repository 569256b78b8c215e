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

// `microseconds` of each listed plan at these rows, 0 where it was not measured. `count` at most;
// none where no cost model that agrees with these times expects anything to be faster.
MorePlans more_plans;

}  // namespace tenon::kernels
