// Attention on a GPU: one CTA computes some queries of one head in one pass over the keys.
//
//   for tiles of keys that some query sees:
//     s[queries][keys] = q x kᵀ              scaled, capped, masked
//     new maximum of each row, p = exp(s - maximum), denominator
//     o[queries][D] = o * exp(old maximum - new) + p x v
//   y = o / denominator
//
// Probabilities that are to be rounded need their sum first: maximum and denominator then have a
// pass of their own.
// Operands of one 16-bit type are multiplied as they are, p rounded to that type. Everything else
// is split into exact bf16 terms (split_parts.h), which gives what f32 arithmetic would.
#pragma once

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Up to how many queries the launch for few takes.
int64_t few_flash_queries(const ir::Graph& graph, const ir::Node& node,
                          const AttentionProblem& problem, const Settings& settings);

// `many`: of the two launches that for more queries. `wanted`: 1, or 0 where another launch has the
// queries of this Run.
Launch flash_launch(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                    const AttentionOperands& operands, const Settings& settings, bool many,
                    const Dim& wanted);

}  // namespace tenon::kernels
