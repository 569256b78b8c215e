// Every graph output is a value of its own that a node writes.
//
// Why: rewriting may leave an output that is an input, a constant or the same value as another
// output; the caller's buffers are distinct, so somebody must copy. A view (Reshape) says so.
// Why here: last, when no pass can dissolve the view again.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void separate_outputs(ir::Graph& graph);

}  // namespace tenon
