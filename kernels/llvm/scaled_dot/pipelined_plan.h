// The candidate `pipelined`: weights in the order of the matrix instructions, copies that run
// ahead. A kernel for each range of rows; a Run gives tasks to one of them.
#pragma once

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

Planned plan_pipelined(const ir::Graph& graph, const ir::Node& node, const Settings& settings);
Planned plan_merged(const ir::Graph& graph, const ir::Node& node, const Settings& settings);

}  // namespace tenon::kernels
