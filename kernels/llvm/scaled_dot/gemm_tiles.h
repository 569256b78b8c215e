// The dot skeleton for many rows where the processor has tile registers (AMX): activations and
// weights as bf16, sums in f32.
//
//   for kc in K by k_block:
//     panel[k/2][columns][2] = b in bf16, scaled               dequantised once
//     for 32 rows at a time: sums += a[rows, kc…] x panel      in tiles
//   epilogue(sums)
//
// A 4-bit float times its scale is exact in bf16. An activation loses up to 2^-9 of itself, less
// than half a step of int8 under the largest of its block: whoever allows the one allows the other,
// and nothing has to be scaled block by block.
#pragma once

#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct TilePlan {
  int64_t row_block = 0;  // rows of one task
  int64_t k_block = 0;    // k dequantised at once
  Dim rows;
  Dim tasks(const WeightLayout& layout) const { return ceil_div(rows, row_block) * layout.panels; }
};

inline constexpr int64_t kTileRows = 32;  // that one step takes

Support supports_tiles(const WeightLayout& layout, const codegen::HostTarget& host);
TilePlan plan_gemm_tiles(const Dim& rows, const WeightLayout& layout,
                         const codegen::HostTarget& host);

// f32 rows `a` as bf16 in the order of tiles, [rows / 16][k / 32][16][32]: adds a launch, idle
// unless `wanted` is 1, and scratch.
BufferArgument tile_rows(const Dim& rows, int64_t k, BufferArgument a, const Dim& wanted,
                         Lowered& lowered);

// `a`: what tile_rows made. Dims must be declared before; `epilogue` stores.
void emit_gemm_tiles(LaunchWriter& writer, const TilePlan& plan, const WeightReader& weight,
                     codegen::ValueId a, Epilogue& epilogue);
void declare_gemm_tiles(LaunchWriter& writer, const TilePlan& plan);

}  // namespace tenon::kernels
