// The attention skeleton: one pass over the keys, scores never leave L1.
//
// Lanes are queries. A task takes a block of queries of one head:
//   qᵀ[D][queries]                    once, transposed
//   for blocks of keys:
//     sᵀ[keys][queries] = k x qᵀ      scaled, capped, masked
//     new maximum, pᵀ = exp(sᵀ - maximum), denominator
//     oᵀ[D][queries] = oᵀ * exp(old maximum - new) + vᵀ x pᵀ
//   y = (oᵀ / denominator)ᵀ
// Both products broadcast elements of k and v as they lie in memory; the softmax works along rows
// of the tile, so that no step needs a sum across lanes.
// One query alone would leave the lanes empty: then the heads that share keys stand in them.
// Probabilities that are to be rounded need their sum first: maximum and denominator then have a
// pass of their own, and the second computes the scores again.
#pragma once

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/scaled_dot/micro_tile.h"

namespace tenon::kernels {

inline constexpr int64_t kMaxDepth = 512;

// Of which a Run uses one: that for one query, or that for more.
std::vector<Launch> one_pass_launches(const ir::Graph& graph, const ir::Node& node,
                                      const AttentionProblem& problem,
                                      const AttentionOperands& operands,
                                      const codegen::HostTarget& host);

}  // namespace tenon::kernels
