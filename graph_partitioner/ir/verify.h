// The invariants of graph.h, checked after each pass in debug builds and in every test.
#pragma once

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

Support verify(const Graph& graph);

}  // namespace tenon::ir
