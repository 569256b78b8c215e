// Nodes as reports name them.
#pragma once

#include <string>

#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels {

// Its own name, or that of what it makes.
std::string display_name(const ir::Graph& graph, const ir::Node& node);
// "(f16[rows,4096], f4e2m1[4096,4096], -) -> (f16[rows,4096])"
std::string problem_text(const ir::Graph& graph, const ir::Node& node);
// " {axis=1, mode=cubic}", or nothing; what is long has no place in a reason and is "…".
std::string attributes_text(const ir::Node& node);

}  // namespace tenon::kernels
