// One side of a dot, traced back through what exporters put between stored codes and the product.
//
//   NVFP4   scale f8 [N,K/16], global ──DequantizeLinear──────┐
//           codes f4 [N,K] ───────────────────────────────────DequantizeLinear axis=-1 block 16
//   MX      codes f8|f4 [N,K], scale e8m0 [N,K/32] ───────────DequantizeLinear axis=-1 block 32
//   FP8     codes f8, scale [] ───────────────────────────────DequantizeLinear
//   INT4    codes [K,N], scale [K/32,N], zero? ───────────────DequantizeLinear axis=0 block 32
//   INT8    codes [K,N], scale [N], zero? ────────────────────DequantizeLinear axis=1
//
// each followed by any of Cast (between floats) and Transpose (of the last two axes).
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::scaled_dot_forms {

struct Operand {
  ir::ValueId value = ir::kNoValue;  // the codes, or the plain tensor
  ir::BlockScale scale;
  ir::ValueId global = ir::kNoValue;  // one f32 that multiplies every block scale
  bool swapped = false;               // the last two axes are stored the other way round
  std::vector<int> sources;           // of the nodes that dissolve
};

enum class Side { kLeft, kRight };

// Which codes of a left side are found: an integer activation is cheaper dequantised once than in
// every tile that reads it.
enum class Codes { kSmallFloats, kSmallFloatsAndIntegers };

// `swapped`: the op itself already reads the operand transposed (Gemm's transB).
Operand trace_operand(const ir::Graph& graph, ir::ValueId value, Side side, bool swapped,
                      Codes left = Codes::kSmallFloats);

}  // namespace tenon::scaled_dot_forms
