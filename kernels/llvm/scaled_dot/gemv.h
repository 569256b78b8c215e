// The dot skeleton for one row: codes are read once, decoded in registers and never stored.
#pragma once

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"

namespace tenon::kernels {

// One task is one panel of columns. `a` is one f32 row of K.
void emit_gemv(LaunchWriter& writer, const WeightReader& weight, codegen::ValueId a,
               Epilogue& epilogue);

}  // namespace tenon::kernels
