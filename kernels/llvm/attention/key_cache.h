// Keys and values as an attention kernel wants them, one tensor each: a cache is appended to first
// (present = past, then the new rows, then zeros). For the host 16-bit ones are converted to f32.
#pragma once

#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/lowered.h"

namespace tenon::kernels {

struct KeyRows {
  BufferArgument buffer;
  HeadStrides strides;
};

// One cache after this step. `kept`: how many rows of the past stay, of batch row `batch`.
struct CacheAppend {
  ir::ValueId past, fresh;
  HeadStrides strides;  // of the new rows
  int64_t depth;
  DType dtype;
  BufferArgument present;
};
codegen::ValueId kept_rows(LaunchWriter& writer, const AttentionProblem& problem,
                           codegen::ValueId lengths, codegen::ValueId batch);

// The keys (0) or values (1) of a node: its cache after `append`'s launch, or k or v as they are.
using AppendLaunch = Launch (*)(const ir::Graph& graph, const AttentionProblem& problem,
                                const CacheAppend& cache);
KeyRows appended_rows(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                      int which, AppendLaunch append, Lowered& lowered);

// `which`: 0 for keys, 1 for values. Adds launches and scratch to `lowered` where needed.
KeyRows key_rows(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                 int which, Lowered& lowered);

}  // namespace tenon::kernels
