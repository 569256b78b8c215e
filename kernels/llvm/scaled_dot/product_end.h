// From sums to results: what every kernel of packed weights does at the end of a tile.
#pragma once

#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/fragment_weight.h"

namespace tenon::kernels {

class ProductEnd {
 public:
  // Sums that are finished at a time, and how many tokens the whole tile has.
  struct Part {
    int tokens, rows, tile_tokens;
  };
  ProductEnd(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
             const ScaledDotProblem& problem, const FragmentLayout& layout,
             const FragmentBuffers& buffers, const Part& part, Lowered& lowered);

  void begin() { epilogue_.begin(); }  // once, at the top of the kernel
  // `sums` [tokens, rows]: those of token `token` and row `row` of the weight, and following ones.
  void emit(codegen::ValueId token, codegen::ValueId row, Tile sums);

 private:
  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ScaledDotProblem& problem_;
  const FragmentLayout& layout_;
  Part part_;
  codegen::ValueId column_scales_;
  Epilogue epilogue_;
};

}  // namespace tenon::kernels
