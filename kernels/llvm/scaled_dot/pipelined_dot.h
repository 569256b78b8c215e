// GEMMs of packed weights on a GPU, weights on the left (gemm_config.h):
//   y^T [N, rows] = w [N, K] x^T [K, rows]
// A CTA takes tile_m rows of the weight and tile_n rows of x ("tokens"). TMA loads of both run
// ahead in rings; weights are dequantised in the registers of the threads that multiply them.
// Rows in f32 are multiplied as three terms in bf16 each (split_parts.h), with the same weights.
#pragma once

#include "kernels/llvm/scaled_dot/dot_sections.h"
#include "kernels/llvm/scaled_dot/gemm_config.h"
#include "kernels/llvm/scaled_dot/row_prologue.h"

namespace tenon::kernels {

struct PipelinedDot {
  const ir::Graph& graph;
  const DotSections& dots;
  BufferArgument units;
  int sm_count = 1;
  const ScaledDotProblem& problem = dots.first().problem;  // whose rows are everybody's
  const FragmentLayout& layout = dots.layout;
  // The rows of x; f32 ones as a matrix [terms * rows, K], all of the largest terms first.
  BufferArgument terms = BufferArgument::value(problem.dot.a);
  const RowPrologue* prologue = nullptr;  // makes the rows of x; null: they are there

  // `rows`: of x, as far as this kernel takes them; what is put aside for it depends on them.
  Launch emit(const GemmConfig& config, const Dim& rows, Lowered& lowered) const;

 private:
  Launch emit_skinny(const GemmConfig& config, Lowered& lowered) const;
};

}  // namespace tenon::kernels
