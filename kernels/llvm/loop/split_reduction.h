// A reduction of many elements to a few results has too few rows to share among threads. It is
// split:
//
//   parts  [whole parts, elements of a part] -> one partial result per part
//   rest   the elements after the last whole part -> one more
//   total  the partial results -> the result, and what the loop makes of it
#pragma once

#include <vector>

#include "kernels/llvm/loop/problem.h"

namespace tenon::kernels {

// The problem itself where it is not worth splitting, else three problems; appends the bytes of the
// buffers that hold partial results.
std::vector<LoopProblem> split_reduction(LoopProblem problem, std::vector<Scratch>& scratch);

}  // namespace tenon::kernels
