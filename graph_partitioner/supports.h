// "Can you run this fused node?": provider/ passes the selector's answer in.
#pragma once

#include <functional>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon {

// Asked from several threads at once.
using SupportsFn = std::function<Support(const ir::Graph&, const ir::Node&)>;

}  // namespace tenon
