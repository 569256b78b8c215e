// Integer sums that are floats without a conversion, for the kernels that multiply bytes.
#pragma once

#include "codegen/tile/builder.h"

namespace tenon::kernels {

// An integer t within r added to the bits of the float 2^23 + r gives the bits of 2^23 + r + t, for
// powers of two r up to 2^22. Sums that begin with it become floats by the fma that scales them:
// Neoverse-N1 converts a vector in the time of four sdot.
inline constexpr int64_t kBiasBase = 1 << 23, kBiasBaseBits = 0x4B000000;
inline constexpr int64_t kBiasRange = 1 << 22;
// What sums of bytes stay within over blocks of NVFP4 that share a row's scale.
inline constexpr int64_t kChainRange = 1 << 20;

// The bias times a scale must be exact: 22 bits of an f32 scale remain.
inline codegen::ValueId scale_under_bias(codegen::Builder& b, codegen::ValueId scale) {
  const codegen::ValueId five = b.constant(DType::kF32, 5, b.type(scale).shape);
  const codegen::ValueId scaled = b.mul(scale, five);
  return b.add(scaled, b.sub(scale, scaled));
}

}  // namespace tenon::kernels
