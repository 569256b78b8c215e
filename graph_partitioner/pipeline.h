// Read first: the ordered passes from an imported graph to fused nodes.
#pragma once

#include <functional>
#include <string_view>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

// Called after each pass with its name and the graph: dumps, timing, golden tests.
using PassObserver = std::function<void(std::string_view pass, const ir::Graph& graph)>;

// A pure function: the same graph in gives the same graph out. A pattern that cannot be matched
// stays as it is; nothing here fails because of what a model contains.
ir::Graph fuse(ir::Graph imported, const PassObserver& observe = {});

// One pass by name, for golden tests and the stage tool; throws UserError listing the names.
ir::Graph run_pass(std::string_view pass, ir::Graph graph);

}  // namespace tenon
