// The dot of byte activations (gemm_int8.h) where the CPU multiplies matrices of bytes: smmla takes
// two rows by two columns, eight k of each, and makes twice as many products as sdot.
//
//   bytes[k/8][columns][8], scales, zero points of the panel                     unpacked once
//   for each micro tile of pairs of rows, for each strip of columns, for each unit:
//     t[2 rows][2 columns] = sum of code * byte - zero * code sum
//     sums += t * scale of the weight * scale of the row
//
// A register holds two rows by two columns from the first product to the last, so what scales it
// lies in that order too: c0 c1 c0 c1 of a weight, r0 r0 r1 r1 of rows (int8_rows.h). A last odd
// row has a partner whose numbers nobody reads.
#pragma once

#include "kernels/llvm/scaled_dot/gemm_int8.h"

namespace tenon::kernels {

bool multiplies_row_pairs(const codegen::HostTarget& host);
GemmPlan plan_gemm_int8_pairs(GemmPlan exact, const WeightLayout& layout);
void emit_gemm_int8_pairs(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                          const Int8Buffers& buffers, Epilogue& epilogue);

}  // namespace tenon::kernels
