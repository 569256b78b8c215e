// A part of an imported graph as a graph of its own, cut as the runtime cuts a claimed partition.
#pragma once

#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

// The nodes whose (only) source is in `sources`. Inputs are the values that come from outside, in
// order of first use; outputs are the values that are used outside; constants come along. Values
// keep names, types and the shapes that `graph` knows.
Graph extract(const Graph& graph, const std::vector<int>& sources);

}  // namespace tenon::ir
