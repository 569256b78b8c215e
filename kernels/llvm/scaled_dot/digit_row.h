// One row of f32 activations as signed digits to the base 256, so that CPUs multiply it by bytes
// and lose nothing: each unit of K is x = scale * (d0 + 256 d1 + 65536 d2 + 16777216 d3), with a
// power of two that leaves 30 bits below the unit's largest |x|. An element within 2^6 of the
// largest keeps all of its bits; smaller ones are off by 2^-30 of the largest at most, which is 64
// times less than what one f32 addition loses. Where the CPU multiplies unsigned by signed bytes,
// digits are unsigned and the highest one has 128 added.
#pragma once

#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

inline constexpr int kDigits = 4;

struct DigitRow {
  BufferArgument digits;  // [kDigits][k], lowest first, in the order of int8_rows.h
  BufferArgument scales;  // f32 [k / unit]; NaN where the unit is not finite
};

// `a`: f32. Adds a launch, which has tasks where there is `one` row, and scratch to `lowered`.
// `factor`, a power of two, multiplies the scales.
DigitRow digit_row(const ScaledDotProblem& problem, BufferArgument a, const Dim& one, int64_t unit,
                   bool split_eights, DType digit_type, double factor, Lowered& lowered);

}  // namespace tenon::kernels
