// Functions of f64 tiles, at most 4 ULP from the true value, in operations that every target has:
// what a GPU runs where the host calls libm.
#pragma once

#include "codegen/passes/expression.h"

namespace tenon::codegen {

Expr exp_f64(Expr x);
Expr exp2_f64(Expr x);
Expr log_f64(Expr x);
Expr log2_f64(Expr x);
Expr tanh_f64(Expr x);
Expr erf_f64(Expr x);
Expr sin_f64(Expr x);
Expr cos_f64(Expr x);
Expr tan_f64(Expr x);
Expr asin_f64(Expr x);
Expr acos_f64(Expr x);
Expr atan_f64(Expr x);
Expr sinh_f64(Expr x);
Expr cosh_f64(Expr x);
Expr asinh_f64(Expr x);
Expr acosh_f64(Expr x);
Expr atanh_f64(Expr x);
Expr pow_f64(Expr x, Expr y);
Expr atan2_f64(Expr y, Expr x);

// The result of x ^ y for f64 tiles, from `magnitude` = |x| ^ y: signs, and the cases that IEEE 754
// names.
Expr with_power_edges(Expr x, Expr y, Expr magnitude);

}  // namespace tenon::codegen
