// The left operand as the dot skeletons want it: f32, [rows, K], contiguous. Anything else (16-bit,
// quantised with scales, transposed) is expanded by one launch into scratch first; that costs
// M * K, the dot M * K * N.
#pragma once

#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

bool is_byte(DType dtype);
bool has_float_rows(DType dtype);  // floats that need no scale to be numbers

Support supports_dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem);
// Where the rows are; adds a launch and scratch to `lowered` where they must be made, `lanes` of a
// row at a time.
inline constexpr int kHostRowLanes = 16, kGpuRowLanes = 128;
BufferArgument dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem, Lowered& lowered,
                          int lanes = kHostRowLanes);

// Rows whose length is a multiple of 4 KiB fall on one set of the L1 cache and evict each other.
// The distance at which rows should lie: K, or a cache line more.
Dim row_distance(const ScaledDotProblem& problem);
// A copy of f32 rows at that distance, made when `several` is 1 (there is more than one row).
BufferArgument spread_rows(const ScaledDotProblem& problem, BufferArgument a, const Dim& several,
                           Lowered& lowered);

// A copy of f32 rows in groups of `group`, [rows / group][K / group][group rows][group k], made
// when `wanted` is 1; K is whole groups.
BufferArgument interleave_rows(const ScaledDotProblem& problem, BufferArgument a, int group,
                               const Dim& wanted, Lowered& lowered);

// f32 rows as terms of bf16 (split_parts.h), for products that copy their rows from memory: room
// for those of all rows, one matrix [rows, K] behind the other, the largest terms first; and the
// launch that splits, for the Runs where `wanted` is 1 and not 0.
BufferArgument room_for_terms(const ScaledDotProblem& problem, int terms, Lowered& lowered);
Launch split_rows(const ScaledDotProblem& problem, int terms, BufferArgument room,
                  const Dim& wanted);

}  // namespace tenon::kernels
