// The dot skeleton for one row: codes are read once, dequantised in registers and never stored.
#pragma once

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/epilogue.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"

namespace tenon::kernels {

// Words of a block side by side, or one after the other: the same sums in less code, for what
// hardly ever runs and would take as long to compile as what does.
enum class GemvCode { kFast, kShort };

// The sums of a panel's columns. `a` is one f32 row of K.
codegen::ValueId gemv_sum(codegen::Builder& b, const WeightReader& weight, codegen::ValueId a,
                          codegen::ValueId panel, GemvCode code);

// One task is one panel of columns.
void emit_gemv(LaunchWriter& writer, const WeightReader& weight, codegen::ValueId a,
               Epilogue& epilogue);

}  // namespace tenon::kernels
