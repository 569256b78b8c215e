// What it costs a session on a GPU that nodes in the middle of a graph are left to the CPU.
#pragma once

#include <optional>

#include "provider/compile.h"
#include "provider/report.h"

namespace tenon::provider {

// Empty where nothing crosses.
std::optional<CutCost> cut_cost(const Claims& claims);

}  // namespace tenon::provider
