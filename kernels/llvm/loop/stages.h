// The order of reductions in a loop, and which values are worth keeping from one to the next.
#pragma once

#include "kernels/llvm/loop/schedule.h"

namespace tenon::kernels {

struct StashRules {
  int64_t bytes = 16 << 10;  // of scratch for all stashes together
  bool loads = false;        // what memory holds is worth keeping, not only what was computed
  bool outputs = true;       // an output's memory may hold another value until it is written
};

// Fills in `dependence`, `stages` and `stashes`.
void plan_stages(const LoopProblem& problem, LoopSchedule& schedule, const StashRules& rules);

}  // namespace tenon::kernels
