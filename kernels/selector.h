// Read first: which candidate runs a fused node, and why the others do not.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/planning/candidate.h"
#include "kernels/planning/choice.h"

namespace tenon::kernels {

// Candidates for this op where the settings say that it runs, best first; empty for an op that no
// table knows.
std::span<const Candidate> candidates(std::string_view op, const Settings& settings = {});

Choice select(const ir::Graph& graph, const ir::Node& node, const Settings& settings);

// select() as the partitioner's question. Ops that need no kernel (Reshape and other views) are
// supported without a candidate.
Support supports(const ir::Graph& graph, const ir::Node& node, const Settings& settings);
bool is_shape_value(const ir::Node& node);  // known from shapes alone: written by the host

}  // namespace tenon::kernels
