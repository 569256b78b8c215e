// Groups of nodes that gain nothing on a GPU by themselves, but spare copies there.
//
// Left to the CPU, a group gets what it reads from the GPU and gives back what is read there, in
// every Run. Claimed, it gets what it reads from the CPU, inputs of the graph included, and gives
// back what is read there, outputs included. Where that is less, the group is worth a claim.
#pragma once

#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon {

// `groups`: positions in graph.order(). `gains`, by group: says yes to such groups, too.
void count_spared_copies(const ir::Graph& graph, const std::vector<std::vector<size_t>>& groups,
                         std::vector<Support>& gains);

}  // namespace tenon
