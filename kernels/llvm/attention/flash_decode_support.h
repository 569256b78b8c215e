// What flash-decoding takes.
#pragma once

#include "kernels/llvm/attention/problem.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Most queries that such a launch can take; 0: none.
int64_t most_flash_decode_queries(const AttentionProblem& problem);

Support supports_flash_decode(const ir::Graph& graph, const ir::Node& node,
                              const AttentionProblem& problem, const Settings& settings);

}  // namespace tenon::kernels
