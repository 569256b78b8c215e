// One row of f32 activations by a weight of 4-bit codes or bytes, exact: the row as digits
// (digit_row.h), codes as bytes in registers, products of bytes.
//
//   for each unit of K:
//     acc[digit] = sum of digit * byte                        integers, exact
//     sum += (acc as one number) * scale of the weight * scale of the unit
//
// A row that is not finite has NaN for a scale; its sum is made again as gemv.h makes it, so that
// infinities and NaN come out as floats give them.
#pragma once

#include "kernels/llvm/scaled_dot/digit_row.h"
#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"

namespace tenon::kernels {

Support supports_digits(const ir::Graph& graph, const ScaledDotProblem& problem,
                        const WeightLayout& layout, const codegen::HostTarget& host);

struct DigitBuffers {
  codegen::ValueId a = codegen::kNone;                                // the row itself
  codegen::ValueId digits = codegen::kNone, scales = codegen::kNone;  // DigitRow
  codegen::ValueId weight_bytes = codegen::kNone;                     // the words, as bytes
};

// Tasks are panels.
void emit_gemv_digits(LaunchWriter& writer, const WeightReader& weight, const DigitBuffers& buffers,
                      Epilogue& epilogue);

}  // namespace tenon::kernels
