// Values that are bytes of another: no launch makes them.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels {

bool is_view(const ir::Node& node);  // output is the input's bytes under another shape or type

// Whether the caller brings the bytes, as they are or as views: they are there before a Run begins.
bool caller_brings(const ir::Graph& graph, ir::ValueId id);

}  // namespace tenon::kernels
