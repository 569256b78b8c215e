// How long a node takes at least: its bytes through memory. What a plan is expected to cost where
// its candidate has no model of its own.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Puts microseconds into the kernels of `plan` that have none: inputs and outputs once through
// memory, at the rows that the kernel's range counts at; open sizes besides are 1.
void add_roofline(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  Plan& plan);

}  // namespace tenon::kernels
