// One rank's part of a plan, written into the graph.
#pragma once

#include <cstdint>

#include "distributed/sharding/plan.h"
#include "distributed/sharding/report.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

// Weights and exchanges go into the report.
void rewrite(ir::Graph& graph, const Plan& plan, int64_t rank, ShardingReport& report);

}  // namespace tenon::distributed
