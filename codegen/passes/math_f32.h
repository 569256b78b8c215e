// Functions of f32 tiles, at most 4 ULP from the true value, in operations that every target has.
#pragma once

#include "codegen/passes/expression.h"

namespace tenon::codegen {

// In f32 throughout: these are on hot paths (softmax, activations, logarithmic losses).
Expr exp_f32(Expr x);
Expr exp2_f32(Expr x);
// e^x by the target's own 2^x: 1 ULP more than the error of that.
Expr exp_by_exp2(Expr x);
Expr log_f32(Expr x);
Expr log2_f32(Expr x);
Expr tanh_f32(Expr x);
Expr erf_f32(Expr x);
// 1 + erf(x), as activations need it: within 2^-22, and small numbers have digits of their own.
Expr one_plus_erf_f32(Expr x);

// With f64 inside, which makes range reduction and cancellation easy.
Expr sin_f32(Expr x);
Expr cos_f32(Expr x);
Expr tan_f32(Expr x);
Expr asin_f32(Expr x);
Expr acos_f32(Expr x);
Expr atan_f32(Expr x);
Expr sinh_f32(Expr x);
Expr cosh_f32(Expr x);
Expr asinh_f32(Expr x);
Expr acosh_f32(Expr x);
Expr atanh_f32(Expr x);
Expr pow_f32(Expr x, Expr y);
Expr atan2_f32(Expr y, Expr x);

}  // namespace tenon::codegen
