// What a partition takes on the host, in stock kernels and in ours: an estimate that two numbers of
// the same kind can be compared by, not a prediction.
//
// Three things count. Every imported node is a call of the runtime's, every fused one a cheaper one
// of ours, and a partition is one call more. What passes through memory: stock kernels read and
// write every tensor between two nodes, ours those between two loops. And arithmetic: products of
// plain floats are slower here than in the runtime's library, those of packed weights faster.
#pragma once

#include <cstdint>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

struct HostTime {
  double stock = 0, ours = 0;  // nanoseconds
};

// `whole` is the imported graph, `cut` a part of it, `fused` what the passes made of that part;
// `size` stands for every symbolic size.
HostTime host_time(const ir::Graph& whole, const ir::Graph& cut, const ir::Graph& fused,
                   int64_t size);

}  // namespace tenon
