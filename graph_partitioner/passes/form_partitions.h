// Claimable nodes grouped into convex partitions.
//
// Each node gets a level, in topological order:
//   claimable    level(n) = max over producers p of level(p)
//   unclaimable  level(n) = max over producers p of level(p) + (p is claimable ? 1 : 0)
// The claimable nodes of one level are one partition.
//
// Why that is convex and acyclic. Along every edge p → c the level does not fall, and it rises
// where p is claimable and c is not. Let a path leave partition L and come back to it: levels along
// it are all L, yet the first node outside is reached from a claimable node of level L, so it is
// either claimable with level L, hence inside, or unclaimable with level > L. Contradiction:
// convex. Between two partitions every path goes from the lower to the higher level: acyclic.
//
// A node may then sink to a later level, where the nodes that it was fused with are (a weight's
// dequantisation has no producers and would stand at level 0), as long as both edge rules hold.
#pragma once

#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

struct Grouping {
  std::vector<int> level;                   // by position in graph.order()
  std::vector<std::vector<size_t>> groups;  // positions of claimable nodes, by level, none empty
};

// `claimable` goes by position in graph.order(); `together` lists positions of nodes that were
// fused into one node, which should end in one partition.
Grouping form_partitions(const ir::Graph& graph, const std::vector<char>& claimable,
                         const std::vector<std::vector<size_t>>& together);

}  // namespace tenon
