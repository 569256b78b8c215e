// How the GPU GEMMs of packed weights cut their work, and which cut is expected to be the fastest.
//
// Operands are swapped, y^T = w x^T: M runs over the rows of the weight, N over the rows of x (the
// tokens).
#pragma once

#include <optional>
#include <vector>

#include "codegen/target.h"
#include "kernels/llvm/scaled_dot/fragment_weight.h"
#include "kernels/llvm/scaled_dot/gemm_problem.h"
#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

inline constexpr int kMaxSkinnyTokens = 16;  // up to which two CTAs share an SM

// What one kernel is made for.
struct GemmConfig {
  int tile_n = 0;               // tokens of a tile
  int units = 1;                // of the packed weight: 128 rows by unit_k, in a stage
  int unit_k = kFragmentDepth;  // 64; 32 of tf32
  int stages = 0;
  int ctas_per_sm = 1;
  int64_t split_k = 1;  // CTAs that share K; the last one adds the partial sums in a fixed order
  // Skinny GEMM: groups of warps that share K inside of a CTA; 0: all warps have all of K.
  int warp_split_k = 0;
  // Skinny GEMM: x is read once, when the CTA begins, and stays in shared memory.
  bool resident_x = false;
  int64_t shared_bytes = 0;  // that a CTA takes at least, so that no more than ctas_per_sm fit
  double microseconds = 0;   // what it is expected to take
  GemmProblem problem = {};  // where

  bool is_skinny() const { return warp_split_k > 0; }
  int tile_m() const { return is_skinny() ? kFragmentRows / warp_split_k : kFragmentRows; }
  int k_per_stage() const { return units * unit_k * (is_skinny() ? warp_split_k : 1); }
  // One token leaves seven columns of the matrix instruction to spare: each block of k gets an
  // accumulator of its own, and scales multiply eight accumulators instead of all weights.
  bool accumulates_per_block(const FragmentLayout& layout) const {
    return accumulates_per_block(layout.can_accumulate_per_block());
  }
  bool accumulates_per_block(bool layout_can) const {
    return resident_x && tile_n == 1 && units % 2 == 0 && layout_can;
  }
  // What the splits of K meet in, for up to `rows` rows of x.
  Dim tiles(const FragmentLayout& layout, const Dim& rows) const;
  Dim partial_bytes(const FragmentLayout& layout, const Dim& rows) const;
  PlannedKernel planned(const FragmentLayout& layout, const Dim& rows) const;
};

// What a tuner's log tells of one: empty where it is none of ours.
std::optional<GemmConfig> gemm_config_from(const KernelConfig& config, const GemmProblem& problem);

// The best configs for up to `rows` rows of x, best first: bytes, products and dequantising against
// what an SM does in a microsecond. `overlapping` as in GemmProblem: neighbours fill what a product
// leaves idle that waits for no launch before it; else waves count.
std::vector<GemmConfig> rank_gemm_configs(const FragmentLayout& layout, int64_t rows,
                                          int overlapping, const codegen::GpuTarget& gpu);
// Those with resident x; none where its rows are too many or too long.
std::vector<GemmConfig> rank_resident_configs(const FragmentLayout& layout, int64_t rows,
                                              const codegen::GpuTarget& gpu);

// The rows that each kernel of a weight is made for.
std::vector<RowRange> row_ranges(const Dim& rows);
// As many rows as the last range is cut for.
int64_t most_ranked_rows();

}  // namespace tenon::kernels
