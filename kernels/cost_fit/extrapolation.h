// Where the cost model goes past what it was fitted to.
#pragma once

#include <string>
#include <vector>

#include "codegen/gpu_costs.h"
#include "kernels/device/description.h"
#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

// Sentences; none where the card is what the constants were fitted on.
std::vector<std::string> extrapolated_machine(const codegen::CostSource& source,
                                              const device::Description& gpu);
// "K 28672 > 14336"; empty where the problem is among the fitted ones, or nobody estimates it.
std::string extrapolated_sizes(const codegen::CostSource& source, const ProblemNumbers& problem);

}  // namespace tenon::kernels
