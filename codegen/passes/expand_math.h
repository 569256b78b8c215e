// Rewrites what no instruction does into what every target has: transcendental functions as
// polynomials, conversions of small floats as integer arithmetic, f16 and bf16 arithmetic in f32.
// Functions of f64 tiles stay: the host emitter calls libm for them.
#pragma once

#include "codegen/tile/ir.h"

namespace tenon::codegen {

// What 2^x of f32 becomes: GPUs have an instruction that is right to 2^-22, and exponentials built
// on it cost half of the polynomial.
enum class Exp2 { kPolynomial, kInstruction };

Kernel expand_math(const Kernel& kernel, Exp2 exp2 = Exp2::kPolynomial);

}  // namespace tenon::codegen
