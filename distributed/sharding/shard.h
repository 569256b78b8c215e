// Read first: rewrites a graph into what one rank computes of it.
//
// Runs inside fuse(), behind share_equal_values and before hoist_views: products and attentions are
// matched, everything else is a primitive, and nothing is fused yet. Every rank makes the same plan
// (plan.h) and writes its own part of it (rewrite.h), so that all run the same collectives in the
// same order.
//
// One rank leaves the graph as it is. So does a graph that has collectives already: whoever wrote
// it has cut it.
#pragma once

#include <cstdint>

#include "distributed/sharding/annotations.h"
#include "distributed/sharding/report.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

struct ShardingOptions {
  int64_t rank = 0, ranks = 1;
  // A smaller weight is held whole where its result would have to be put together right away.
  int64_t least_gathered_bytes = int64_t{1} << 20;
  // Of a sum over ranks: a smaller one stays one exchange, and every rank has all tokens.
  int64_t least_scattered_bytes = int64_t{1} << 20;
  Annotations annotations = {};  // of the file: they go before the pass's own choice
};

// Throws UserError where rank and ranks do not fit together.
ShardingReport shard(ir::Graph& graph, const ShardingOptions& options);

}  // namespace tenon::distributed
