// One row of byte activations by a weight of 4-bit codes or bytes: codes become bytes in registers
// and are multiplied there, so that the weight is read once and nothing is written.
//
//   for each unit of K:
//     t = sum of code * byte - zero * code sum
//     sum += t * scale of the weight * scale of the row
#pragma once

#include "kernels/llvm/scaled_dot/gemm_int8.h"

namespace tenon::kernels {

// Tasks are panels. Codes of the row are signed.
void emit_gemv_int8(LaunchWriter& writer, const WeightReader& weight, const Int8Buffers& buffers,
                    Epilogue& epilogue);

}  // namespace tenon::kernels
