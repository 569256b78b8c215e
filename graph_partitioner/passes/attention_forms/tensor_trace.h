// A query, key or value traced back through what an exporter puts in front of the product.
//
//   x [B,S,H*D] ── Reshape [B,S,H,D] ── Transpose ── [Mul | Div by a number] ── dot
//
//   groups:  k [B,G,S,D] ── Reshape [B,G,1,S,D] ── Expand [B,G,R,S,D] ── Reshape [B,G*R,S,D]
//
//   packed:  qkv [B,S,3,H,D] ── Transpose [3,B,H,S,D] ── Slice one ── Reshape [B,H,S,D]
//
//   rounded: x ──[Mul]── Transpose ── QuantizeLinear ── DequantizeLinear ── dot
//
// Transposes become a layout, numbers become part of the scale, repeated heads are read once. One
// scale for all elements rounds them the same wherever they lie: such a rounding, and numbers in
// front of it, are written anew before the transposes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

// One of several tensors packed along an axis: cut out before the transpose instead of after it.
struct PackedPart {
  ir::ValueId packed = ir::kNoValue;
  int64_t axis = 0;
  Dim start;
  Shape shape;  // of the part, without the axis
};

// An op on every element alone, its other operands numbers.
struct PointwiseStep {
  ir::Node node;
  DType result;
};

struct TensorTrace {
  ir::ValueId value = ir::kNoValue;
  std::optional<PackedPart> part;  // then `value` is still to be written
  std::string layout;              // letters of value's axes: "bhsd", "bshd", "bhds"
  int64_t heads = 0;               // before they were repeated
  double scale = 1.0;
  std::vector<PointwiseStep> rounding;  // the first gives what the product reads
  std::vector<int> sources;
};

TensorTrace untraced(ir::ValueId value, const std::string& layout);

// `layout` names the four axes of the start's value as the product reads them; `allowed` are the
// layouts that tenon::Attention takes.
TensorTrace trace_tensor(Rewrite& r, TensorTrace start, const std::vector<std::string>& allowed);

// Writes a packed part's slice and the rounding; `value` where there is neither.
ir::ValueId materialize(Rewrite& r, const TensorTrace& trace);

}  // namespace tenon::attention_forms
