// Writes the tile kernel of a loop problem after its schedule.
#pragma once

#include "kernels/candidate.h"
#include "kernels/llvm/loop/problem.h"

namespace tenon::kernels {

// Whether the ops, types and sub-byte stores of the problem can be emitted.
Support supports_problem(const LoopProblem& problem, const Settings& settings);
Launch emit_loop(const LoopProblem& problem, const Settings& settings);

}  // namespace tenon::kernels
