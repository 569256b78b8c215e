// A ScaledDot as numbers: what every candidate asks about and packs from.
#pragma once

#include <string>

#include "base/support.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

struct ScaledDotProblem {
  ir::ScaledDot dot;
  Shape batch;  // of the result, broadcast
  Shape a_batch, b_batch;
  Dim m, n, k;
  Dim rows;                  // batch * m where b has no batch of its own: one tall a
  DType a_type{}, b_type{};  // logical element types
  DType y_type{};            // of the dot's result, before the body
  bool b_constant = false;   // and two-dimensional: it can be packed

  bool has_scale_b() const { return dot.scale_b.scale != ir::kNoValue; }
  bool is_quantized_b() const;  // b's elements need dequantising
  int64_t block() const;        // k elements per scale of b; k, or 1, where there is one for all
  std::string text() const;     // "nvfp4 [1536,384] block 16, rows batch*seq, f32"
};

// `support` says why it is no problem that any candidate could take; the rest is unset then.
struct DescribedScaledDot {
  Support support;
  ScaledDotProblem problem;
};
DescribedScaledDot describe_scaled_dot(const ir::Graph& graph, const ir::Node& node);

}  // namespace tenon::kernels
