// 4- and 8-bit floats as integer arithmetic, bit for bit what base/convert.h does.
#pragma once

#include "base/convert.h"
#include "codegen/passes/expression.h"

namespace tenon::codegen {

Expr dequantize_small_float(Fn fn, Expr codes);
Expr quantize_small_float(Fn fn, Expr x, EncodeRule rule);

}  // namespace tenon::codegen
