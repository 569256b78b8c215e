// The quantised left side of a product becomes rows of 16 bits that hold its numbers exactly:
//
//   x ── Q ── codes ──────────────ScaledDot ── y        x ── Q ── codes ── Cast(f16) ──ScaledDot ──
//   y
//             scale (scale_a) ───────┘            =>                   alpha * scale ─────┘
//
//   one scale for all of it    the code, less its zero point, is a number of f16 and of bf16; the
//                              scale stays f32 and multiplies the result
//   e8m0 scales of blocks      code times scale is a number of bf16
//   e4m3 scales of e2m1        2 + 4 bits: a number of both types
//   anything else              what DequantizeLinear gives, in the type that the model multiplies
//
// Kernels that copy ahead want operands of their matrix instructions in memory: they multiply such
// rows once, and codes not at all. The node that makes them is pointwise, so it ends in whatever
// quantised the rows: a loop, a norm, the epilogue of another product. Integers are taken where the
// model multiplies f32, which would be three products of bf16 otherwise.
//
// Whether kernels take the rows, or codes as they are, is for `supports` to say, asked of
// MergedDots with one dot: only such kernels run these, and no kernel of a host does.
//
// Runs before `decompose`, while a DequantizeLinear is one node.
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/supports.h"

namespace tenon {

void dequantize_rows(ir::Graph& graph, const SupportsFn& supports);

}  // namespace tenon
