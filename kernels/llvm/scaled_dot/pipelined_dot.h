// Products of packed weights with rows on a GPU, weights on the left:
//   y^T [N, rows] = w [N, K] x^T [K, rows]
// A block takes 128 rows of the weight and a number of rows of x ("tokens"). Copies of both run
// ahead in rings; the weights become numbers in the registers of the threads that multiply them.
// Rows in f32 are multiplied as three terms in bf16 each (split_parts.h), with the same weights.
#pragma once

#include <string>
#include <vector>

#include "codegen/target.h"
#include "kernels/llvm/scaled_dot/dot_sections.h"
#include "kernels/llvm/scaled_dot/row_prologue.h"

namespace tenon::kernels {

// What one kernel is made for, and how its work is cut.
struct PipelinedShape {
  int tokens = 0;              // of a tile
  int units = 1;               // in a slot
  int depth = kFragmentDepth;  // k of a unit
  int slots = 0;               // of the rings
  int blocks = 1;              // that a multiprocessor runs at once
  int64_t splits = 1;          // of K, summed in a fixed order by whoever comes last
  // Few tokens: the warps of a block have as many parts of k, and 128 / groups rows together.
  int groups = 0;
  // Few tokens: they are read once, when the block begins, and stay in shared memory.
  bool keeps_tokens = false;
  int64_t shared_bytes = 0;  // that a block takes at least, so that no more than `blocks` fit
  double microseconds = 0;   // what it is expected to take

  // One token leaves seven columns of the matrix instruction to spare: blocks of k get one each,
  // and scales multiply eight sums instead of all weights.
  bool sums_blocks(const FragmentLayout& layout) const {
    return keeps_tokens && tokens == 1 && units % 2 == 0 && layout.can_sum_blocks();
  }
  std::string text() const;
};

// The best shapes for up to `rows` rows, best first: bytes, products and decoding against what a
// multiprocessor does in a microsecond. `overlaps`: the product waits for no launch before it, and
// its neighbours fill what it leaves idle; else waves count.
std::vector<PipelinedShape> rank_shapes(const FragmentLayout& layout, int64_t rows, bool overlaps,
                                        const codegen::GpuTarget& gpu);
// Those of them that keep their tokens, none where these are too many or too long.
std::vector<PipelinedShape> rank_keeping_shapes(const FragmentLayout& layout, int64_t rows,
                                                const codegen::GpuTarget& gpu);

// Rows up to which each kernel of a weight is made; the last one takes all others.
std::vector<int64_t> row_buckets(const Dim& rows);

struct PipelinedDot {
  const ir::Graph& graph;
  const DotSections& dots;
  BufferArgument units;
  int multiprocessors = 1;
  const ScaledDotProblem& problem = dots.first().problem;  // whose rows are everybody's
  const FragmentLayout& layout = dots.layout;
  // The rows of x; f32 ones as a matrix [terms * rows, K], all of the largest terms first.
  BufferArgument terms = BufferArgument::value(problem.dot.a);
  const RowPrologue* prologue = nullptr;  // makes the rows of x; null: they are there

  // `rows`: of x, as far as this kernel takes them; what is put aside for it depends on them.
  Launch emit(const PipelinedShape& shape, const Dim& rows, Lowered& lowered) const;

 private:
  Launch emit_few_tokens(const PipelinedShape& shape, Lowered& lowered) const;
};

}  // namespace tenon::kernels
