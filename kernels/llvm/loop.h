// tenon::Loop as one tile kernel: pointwise and reduction chains of any shape, with data movement
// on the way in.
#pragma once

#include <span>

#include "kernels/llvm/loop/problem.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> loop_candidates();

// Of a loop that describe_loop() described, with the constants and checks that it found.
Planned plan_described_loop(const ir::Graph& graph, const LoopProblem& problem, Lowered constants,
                            const Settings& settings);

}  // namespace tenon::kernels
