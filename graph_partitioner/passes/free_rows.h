// Dots that multiply every row of `a` by the same weight: rows may be grouped or picked at will.
#pragma once

#include "graph_partitioner/ir/fusions.h"

namespace tenon {

bool has_free_rows(const ir::Graph& graph, const ir::Node& node, const ir::ScaledDot& dot);

}  // namespace tenon
