// Sequence parallelism. Between a sum over the ranks and the next product every rank has all tokens
// and does the same work as the others. Where the number of tokens is known, each does its own:
//
//   AllReduce     ── add, norm of all tokens ── products
//   ReduceScatter ── add, norm of own tokens ── AllGather ── products
//
// As many bytes travel, in two exchanges instead of one.
#pragma once

#include <cstdint>
#include <string>

#include "distributed/sharding/plan.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

struct TokenOptions {
  int64_t rank = 0, ranks = 1;
  int64_t least_bytes = 0;  // of a sum that is worth a second exchange
  size_t old_values = 0;    // those from here on were added when the graph was cut
};

// On a graph that was cut by the plan; the same on every rank. What was done, or why nothing was;
// empty where there are no sums.
std::string deal_tokens(ir::Graph& graph, const Plan& plan, const TokenOptions& options);

}  // namespace tenon::distributed
