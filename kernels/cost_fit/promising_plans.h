// Which plans of a range are worth measuring once a few of them were.
#pragma once

#include <cstddef>
#include <vector>

#include "codegen/gpu_costs.h"
#include "kernels/cost_fit/measured_plan.h"

namespace tenon::kernels {

// Places in `others`, most promising first, `count` at most: what cost models that agree with the
// times that were measured, up to a factor for all, expect to be faster than the fastest of these.
// The models are `costs` with each constant wrong by up to two times.
std::vector<size_t> promising_plans(const std::vector<MeasuredPlan>& measured,
                                    const std::vector<MeasuredPlan>& others,
                                    const codegen::GpuCosts& costs, size_t count);

}  // namespace tenon::kernels
