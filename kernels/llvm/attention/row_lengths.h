// Lengths of batch rows as libraries read them, i32 each, by a launch in front of their call.
#pragma once

#include "kernels/llvm/attention/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct RowLengths {
  BufferArgument queries;    // all that there are
  BufferArgument keys;       // that count
  BufferArgument distances;  // of the first query from the end of the keys
};

// Adds the launch and its scratch; `problem` has kv_lengths.
RowLengths row_lengths(const ir::Graph& graph, const AttentionProblem& problem, Lowered& lowered);

}  // namespace tenon::kernels
