// Rewrites what no instruction does into what every target has: transcendental functions as
// polynomials, conversions of small floats as integer arithmetic, f16 and bf16 arithmetic in f32.
#pragma once

#include "codegen/tile/ir.h"

namespace tenon::codegen {

// What stays, because the target has an instruction for it.
struct MathInstructions {
  // Of f32, within 2 ULP: exponentials built on it stay within 3 and cost half of the polynomial.
  bool exp2 = false;
  // Sums, differences and products: in f32 and rounded they are the same, since f32 has more than
  // twice the digits.
  bool f16 = false, bf16 = false;
  bool f8e4m3fn_to_f16 = false;  // dequantised, then cast
  bool libm = true;              // functions of f64 are calls of it
};

Kernel expand_math(const Kernel& kernel, const MathInstructions& instructions = {});

}  // namespace tenon::codegen
