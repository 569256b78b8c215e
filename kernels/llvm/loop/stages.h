// The order of reductions in a loop, and which values are worth keeping from one to the next.
#pragma once

#include "kernels/llvm/loop/schedule.h"

namespace tenon::kernels {

// Fills in `dependence`, `stages` and `stashes`.
void plan_stages(const LoopProblem& problem, LoopSchedule& schedule);

}  // namespace tenon::kernels
