// Panels of a right operand that arrives at Run: read with its own strides, converted to f32.
#pragma once

#include "kernels/llvm/scaled_dot/gemm.h"

namespace tenon::kernels {

Support supports_runtime_panel(const ir::Graph& graph, const ScaledDotProblem& problem);

class RuntimePanel {
 public:
  RuntimePanel(LaunchWriter& writer, const ir::Graph& graph, const ScaledDotProblem& problem);
  // The same where `b` is not the node's own operand but made of it.
  RuntimePanel(LaunchWriter& writer, const ir::Graph& graph, const ScaledDotProblem& problem,
               BufferArgument b);

  void begin();  // scalars, at the top of the kernel
  // First element of a batch's rows in a (dense) and of its matrix in b.
  codegen::ValueId a_offset(codegen::ValueId batch) const;
  codegen::ValueId b_offset(codegen::ValueId batch) const;
  codegen::ValueId buffer() const { return b_buffer_; }
  bool is_scaled() const;
  Tile numbers(Tile codes) const;  // f32, less the zero point, scaled
  Panel read(const GemmTask& task, codegen::ValueId first, codegen::ValueId count,
             codegen::ValueId scratch, int columns) const;

 private:
  codegen::ValueId batch_offset(codegen::ValueId batch, const std::vector<Dim>& strides) const;
  void declare_batch(const Shape& own, const Dim& matrix, std::vector<Dim>& strides);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ir::Graph& graph_;
  const ScaledDotProblem& problem_;
  codegen::ValueId b_buffer_ = codegen::kNone;
  codegen::ValueId scale_buffer_ = codegen::kNone, zero_buffer_ = codegen::kNone;
  Tile scale_ = codegen::kNone, zero_ = codegen::kNone;  // f32[]
  std::vector<Dim> a_strides_, b_strides_;               // per batch axis, in elements
};

}  // namespace tenon::kernels
