// Wrong costs, for tests and for who chooses what to measure: each constant times a factor of its
// own between 1/2 and 2. Choices may change with them, results may not.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "codegen/gpu_costs.h"

namespace tenon::codegen {

// Of TENON_COST_FACTORS; empty where that is not set. Throws UserError where it is no number.
std::optional<uint64_t> cost_seed_of_environment();

// Log-uniform. It depends on the seed and the constant's name alone, so that architectures, builds
// and constants that are added later do not change it.
double cost_factor(uint64_t seed, std::string_view name);
GpuCosts with_factors(GpuCosts costs, uint64_t seed);

}  // namespace tenon::codegen
