// q, k and v that are slices of one tensor are read from it:
//
//   qkv [B, S, Hq + 2 Hkv, D] ──┬── Slice ── q                     qkv ──┬── q "bshd+0"
//                               ├── Slice ── k ── Attention   =>         ├── k "bshd+4" ──
//                               Attention └── Slice ── v                           └── v "bshd+6"
//
// Attention copies new heads to their places anyway, or reads them by strides.
//
// Runs behind split_dots, which has made products of their own of the slices where it could, and
// before fuse_loops, which would make a loop of each.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void read_packed_heads(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
