// Activations in bytes: each unit of K, or a few at once, is scaled to ±127 and stored as its code
// beside its scale and the sum of its codes. Where the CPU multiplies unsigned by signed bytes,
// several rows are stored as code + 128; a single one stays signed and takes an unsigned weight,
// since to sum the weight's bytes for the 128 would take as long as the product.
//
// A word of 4-bit weights splits into its even and its odd codes by one mask and one shift, so the
// rows are stored in that order: k = 0 2 4 6 1 3 5 7 of each eight.
//
// Kernels that multiply two rows at once want these side by side: of several rows, `pairs` gives
// codes [rows / 2][k / 8][2][8] and numbers of a row twice, [rows / 2][k / unit][2][2], with room
// for the partner of a last odd row. One row lies as without.
#pragma once

#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct Int8Rows {
  BufferArgument codes;   // [rows][k], of the type asked for
  BufferArgument scales;  // f32 [rows][k / unit]
  BufferArgument sums;    // f32 [rows][k / unit], of the codes without the 128
};

// Of several rows: vpdpbusd of x86 takes unsigned activations, sdot of Arm signed ones.
DType int8_code_type(const codegen::HostTarget& host);

// K in units, and how many of them have the same scale; K is whole runs of these.
struct Int8Units {
  int64_t unit = 0, per_scale = 1;
};

struct Int8Order {
  bool split_eights = false, pairs = false;
};

// `a`: f32 rows. Adds a launch and scratch to `lowered`.
Int8Rows int8_rows(const ScaledDotProblem& problem, BufferArgument a, const Int8Units& cut,
                   const Int8Order& order, DType code_type, Lowered& lowered);

}  // namespace tenon::kernels
