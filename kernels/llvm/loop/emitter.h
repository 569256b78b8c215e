// Writes the tile kernel of a loop problem after its schedule.
#pragma once

#include "codegen/target.h"
#include "kernels/llvm/loop/problem.h"
#include "kernels/lowered.h"

namespace tenon::kernels {

// Whether the ops, types and sub-byte stores of the problem can be emitted.
Support supports_problem(const LoopProblem& problem, const codegen::HostTarget& target);
Launch emit_loop(const LoopProblem& problem, const codegen::HostTarget& target);

}  // namespace tenon::kernels
