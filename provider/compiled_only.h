// A partition that was compiled for a context model, or to be looked at, and never runs: what it
// would be is kept for the report, and nothing reaches a device.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/running/executable.h"
#include "kernels/running/program.h"

namespace tenon::provider {

std::unique_ptr<kernels::Executable> compiled_only(kernels::Program program,
                                                   std::string_view why_not_run);

}  // namespace tenon::provider
