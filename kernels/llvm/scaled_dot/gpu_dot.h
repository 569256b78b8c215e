// The dot skeletons for a GPU: one CTA computes a tile of [rows, columns] of the result with the
// matrix unit, K in steps.
//
//   packed   words of codes are loaded a group ahead, dequantised in registers, slab by slab
//   strided  the right operand is read where it lies: it arrives at Run, or needs no dequantising
//
// Operands are f16 or bf16, accumulators f32. What has more bits than the operand type is split
// into terms (split_parts.h), so that the result is as exact as one in f32.
#pragma once

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/gpu_weight.h"
#include "kernels/llvm/scaled_dot/runtime_panel.h"

namespace tenon::kernels {

// What one CTA computes.
struct GpuDotTile {
  int rows = 0, columns = 0, threads = 0;
};

struct GpuDotPlan {
  GpuDotTile tile;
  Dim batches = 1, rows;  // rows of one batch
  Dim n, k;
  DType operand{};           // f16 or bf16
  DType left_type{};         // of the rows in memory
  int left_terms = 1;        // of an element of a
  int right_terms = 1;       // of an element of b
  bool left_turned = false;  // a is [K, M]
  bool integer = false;      // accumulators are i32

  Dim row_blocks() const { return ceil_div(rows, Dim(tile.rows)); }
  Dim column_blocks() const { return ceil_div(n, Dim(tile.columns)); }
  Dim tasks() const { return batches * row_blocks() * column_blocks(); }
};

void declare_gpu_dot(LaunchWriter& writer, const GpuDotPlan& plan);

// `a`: the rows; parameters must be declared before, `epilogue` stores.
void emit_packed_dot(LaunchWriter& writer, const GpuDotPlan& plan, codegen::ValueId a,
                     const GpuWeightLayout& layout, GpuWeightReader& weight, Epilogue& epilogue);
// `k_last`: b is [N, K].
void emit_strided_dot(LaunchWriter& writer, const GpuDotPlan& plan, codegen::ValueId a,
                      RuntimePanel& right, bool k_last, Epilogue& epilogue);

}  // namespace tenon::kernels
