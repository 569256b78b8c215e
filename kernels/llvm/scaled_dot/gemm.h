// The dot skeleton for several rows: one task computes `row_block` rows of a few panels of columns.
//
//   sums[panel][rows][columns] = 0
//   for kc in K by k_block:
//     for each panel of the task:
//       scratch[k_block][columns] = b as f32, dequantised         (the hook)
//       for each micro tile of rows: sums[panel] += a[rows, kc…] x scratch
//   epilogue(sums)
//
// A panel is dequantised once per task and used by all its rows from L1; a[rows, kc…] waits in L2
// for the task's next panel.
#pragma once

#include <functional>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/micro_tile.h"

namespace tenon::kernels {

struct GemmPlan {
  MicroTile tile;
  int64_t row_block = 0;          // rows of one task, a multiple of the tallest micro tile
  int64_t k_block = 0;            // k dequantised at once; whole blocks of scales
  int64_t group = 1;              // panels of one task
  bool streams_few_rows = false;  // few rows take panel after panel, not block after block of K
  double ns_per_mac = 0;          // rough nanoseconds for one multiply-add
  Dim batches = 1, rows;          // rows of one batch
  Dim n, k;
  Dim row_distance;  // from one row of a to the next
  // Not 0: a is [rows / interleave][K / interleave][interleave rows][interleave k], so that a micro
  // tile reads one stream. See interleave_rows.
  int interleave = 0;
  // Operands are bytes: a block of K sums exactly in f32 (192 * 255 * 255 < 2^24), blocks in i32.
  bool integer = false;
  Dim tasks() const { return batches * ceil_div(rows, row_block) * groups(); }
  Dim groups() const { return ceil_div(panels(), group); }
  Dim panels() const { return ceil_div(n, tile.columns); }
};

GemmPlan plan_gemm(const ScaledDotProblem& problem, const codegen::HostTarget& host);

// Whether the tallest micro tile takes as many rows as k in a trip, and K is whole trips.
bool can_interleave(const GemmPlan& plan);

struct GemmTask {
  codegen::ValueId batch, panel;
};

// Rows of b, [k][columns], in f32 or in a type that micro tiles widen.
struct Panel {
  codegen::ValueId buffer, offset;
};

struct GemmHooks {
  codegen::ValueId a = codegen::kNone;                        // f32 rows
  std::function<codegen::ValueId(const GemmTask&)> a_offset;  // of a batch's first row
  // Makes rows [first, first + count) of the panel readable; `scratch` has room for k_block rows.
  std::function<Panel(const GemmTask&, codegen::ValueId first, codegen::ValueId count,
                      codegen::ValueId scratch)>
      panel;
  // Where b need not be dequantised but widened, the same without `scratch`: a task of one micro
  // tile reads b once, so there is nothing to keep. Empty elsewhere.
  std::function<Panel(const GemmTask&, codegen::ValueId first)> stored_panel = {};
};

// Parameters must be declared before; `epilogue` stores.
void emit_gemm(LaunchWriter& writer, const GemmPlan& plan, const GemmHooks& hooks,
               Epilogue& epilogue);
// Declares the dims that emit_gemm uses.
void declare_gemm(LaunchWriter& writer, const GemmPlan& plan);

}  // namespace tenon::kernels
