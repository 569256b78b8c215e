// Which queries of which head a task of an attention kernel computes, and which keys they see.
#pragma once

#include <utility>

#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/launch_writer.h"

namespace tenon::kernels {

// Dims that the code of a task uses; before any code.
void declare_task(LaunchWriter& writer, const AttentionProblem& problem, int64_t query_block);

struct AttentionTask {
  codegen::ValueId batch, head, kv_head, first_query, queries_left;
  codegen::ValueId length;               // keys of this batch row that count
  codegen::ValueId origin;               // position of query 0 among the keys
  codegen::ValueId first_key, last_key;  // some query of the block sees keys in [first, last) only
};

// `number`: of all tasks of query_block queries, those of one head side by side. `lengths`: the
// buffer of kv_lengths or kNone; what it holds is clamped to the keys that there are. `length`:
// what that gave for this task before, so that nobody waits for it again.
AttentionTask locate_task(LaunchWriter& writer, const AttentionProblem& problem,
                          codegen::ValueId number, int64_t query_block, codegen::ValueId lengths,
                          codegen::ValueId length = codegen::kNone);

// What the mask's codes make of scores, which are in units that `per_one` of are 1. Numbers that
// are finite stay so in these units: a row that is hidden by them alone has equal weights.
codegen::ValueId apply_mask(codegen::Builder& b, const AttentionProblem& problem,
                            codegen::ValueId scores, codegen::ValueId codes, double per_one);

// e^x of numbers that are at most 0: what is below the smallest normal number may be 0, so that
// one factor makes the power of two, and nothing is too large.
codegen::ValueId exp_at_most_one(codegen::Builder& b, codegen::ValueId x);

// Where accumulators, which are 0, are the result whatever they would be divided by: rows that saw
// no key. Those of a softmax over keys that are all hidden become 0 / 0.
codegen::ValueId rows_of_nothing(LaunchWriter& writer, const AttentionProblem& problem,
                                 codegen::ValueId total);

}  // namespace tenon::kernels
