// Collectives that are alike, of one operand, become the first of them: the same reduction, groups
// and parts give the same result. Every rank has the same nodes, so all leave out the same ones.
//
// Runs behind the sharding pass, which inserts collectives, and behind share_equal_values, which
// has made operands that are alike one value.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void share_equal_collectives(ir::Graph& graph);

}  // namespace tenon
