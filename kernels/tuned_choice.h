// A choice by tuning records: each is asked of its candidate again, and counts only where that
// offers the recorded config for the recorded rows. Other rows go by estimate.
#pragma once

#include "kernels/planning/candidate.h"
#include "kernels/planning/choice.h"

namespace tenon::kernels {

// `settings` have records.
Choice choose_by_records(const ir::Graph& graph, const ir::Node& node, const Settings& settings);

}  // namespace tenon::kernels
