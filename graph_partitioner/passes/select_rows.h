// Rows are picked before they are computed:
//
//   Slice(dot(norm(h), w))   =>   dot(norm(Slice(h)), w)
//
// A decoder that gives its last token's logits alone may say so behind the last product, or behind
// the norm in front of it. Both work on rows, so that either is done for one row of each sequence
// instead of all. Picking moves up to where one tensor of rows comes in, if nobody else reads what
// stands between; not further: what follows an earlier product is its epilogue.
//
// Runs behind hoist_views and before fuse_epilogues.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void select_rows(ir::Graph& graph);

}  // namespace tenon
