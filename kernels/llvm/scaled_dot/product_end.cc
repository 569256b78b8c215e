#include "kernels/llvm/scaled_dot/product_end.h"

#include <cmath>

namespace tenon::kernels {

using codegen::kNone;
using codegen::ValueId;

ProductEnd::ProductEnd(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
                       const ScaledDotProblem& problem, const FragmentLayout& layout,
                       const FragmentBuffers& buffers, const Part& part, Lowered& lowered)
    : writer_(writer),
      b_(writer.builder),
      problem_(problem),
      layout_(layout),
      part_(part),
      column_scales_(
          layout.scaled_sums ? writer.buffer("scales", DType::kF32, buffers.column_scales) : kNone),
      epilogue_(writer, graph, node, problem, {part.tokens, part.rows}, lowered) {
  writer.declare(problem.rows);
}

void ProductEnd::emit(ValueId token, ValueId row, Tile sums) {
  if (layout_.exponent != 0) {
    sums = b_.mul(sums, b_.constant(DType::kF32, std::ldexp(1.0, -layout_.exponent),
                                    {part_.tokens, part_.rows}));
  }
  if (column_scales_ != kNone) {
    const Tile factor = b_.load({column_scales_, row}, {part_.rows});
    sums = b_.mul(sums, b_.broadcast(factor, {part_.tokens, part_.rows}));
  }
  Epilogue::Place at{token, row};
  if (layout_.n % part_.rows != 0) at.columns_left = b_.sub(b_.index(layout_.n), row);
  if (!mod(problem_.rows, Dim(part_.tile_tokens)).is(0)) {
    at.rows_left = b_.sub(writer_.index(problem_.rows), token);
  }
  epilogue_.emit(at, sums);
}

}  // namespace tenon::kernels
