// Rewrites what no instruction does into what every target has: transcendental functions as
// polynomials, conversions of small floats as integer arithmetic, f16 and bf16 arithmetic in f32.
// Functions of f64 tiles stay: the host emitter calls libm for them.
#pragma once

#include "codegen/tile/ir.h"

namespace tenon::codegen {

Kernel expand_math(const Kernel& kernel);

}  // namespace tenon::codegen
