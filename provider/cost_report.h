// What a report says of the cost model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/device/description.h"
#include "kernels/running/executable.h"

namespace tenon::provider {

// Where constants come from and where they are extrapolated; what others predict from.
nlohmann::ordered_json cost_model_json(const device::Description& gpu, bool gpu_is_here,
                                       const std::optional<uint64_t>& seed);
// Which sizes of a fusion lie outside of what was fitted; empty where none do, or no estimate
// chose.
std::string extrapolation_text(const kernels::FusionReport& fusion, const device::Description& gpu);

}  // namespace tenon::provider
