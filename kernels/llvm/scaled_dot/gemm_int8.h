// The dot skeleton with byte activations: integer sums within a unit of K, floats across units.
//
//   for kc in K by k_block:
//     bytes[k/4][columns][4], scales, zero points of the panel                  unpacked once
//     for each micro tile of rows, for each unit:
//       t = sum of code * byte - zero * code sum
//       sums += t * scale of the weight * scale of the row
//
// t begins as the bits of a float, so that it need not be converted; scales are rounded to 22 bits,
// which costs 2^-23 of a product, and must stay below 2^100. Where codes are stored with 128 added,
// it begins less 128 * the sum of the bytes.
// The weight stays in the layout of the exact kernels (packed_weight.h).
#pragma once

#include "kernels/llvm/scaled_dot/gemm.h"
#include "kernels/llvm/scaled_dot/int8_rows.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"

namespace tenon::kernels {

Support supports_int8(const WeightLayout& layout, const codegen::HostTarget& host);
// Whether many rows of bytes take less time than of floats. Without VNNI x86 needs two products,
// two sums and shifts for what VNNI adds at once: 9 (Haswell) to 17 (Zen 3) bytes in a cycle, where
// two fma take 16 floats. One row gains all the same, by what unpacking takes less.
bool has_byte_products(const codegen::HostTarget& host);
// K per integer sum: the weight's block, cut down to 128.
int64_t int8_unit(const WeightLayout& layout);
// Units under one scale of a row: NVFP4's blocks of 16 share it, four at a time.
int64_t int8_units_per_scale(const WeightLayout& layout);
GemmPlan plan_gemm_int8(GemmPlan exact, const WeightLayout& layout,
                        const codegen::HostTarget& host);

struct Int8Buffers {
  codegen::ValueId codes = codegen::kNone, scales = codegen::kNone, sums = codegen::kNone;  // rows
  // The words of the weight as bytes.
  codegen::ValueId weight_bytes = codegen::kNone;
  bool unsigned_weight = false;  // one row: the weight's bytes are unsigned and the row's signed
};

void emit_gemm_int8(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                    const Int8Buffers& buffers, Epilogue& epilogue);

}  // namespace tenon::kernels
