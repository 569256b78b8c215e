// What compile_gpu has code for, asked before there is a kernel to compile.
#pragma once

#include "base/support.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Of every operation: transcendental functions of f64 have none.
Support supports_gpu(const Kernel& kernel);
// A function of numbers of that type.
Support supports_gpu(Fn fn, DType type);

}  // namespace tenon::codegen
