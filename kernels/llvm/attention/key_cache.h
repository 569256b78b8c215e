// Keys and values as the attention kernel wants them: one f32 tensor each. A cache is appended to
// first (present = past, then the new rows, then zeros); 16-bit ones are converted.
#pragma once

#include "kernels/llvm/attention/problem.h"
#include "kernels/lowered.h"

namespace tenon::kernels {

struct KeyRows {
  BufferArgument buffer;
  HeadStrides strides;
};

// `which`: 0 for keys, 1 for values. Adds launches and scratch to `lowered` where needed.
KeyRows key_rows(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                 int which, Lowered& lowered);

}  // namespace tenon::kernels
