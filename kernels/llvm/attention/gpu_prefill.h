// Attention of many queries where the matrix unit reads shared memory by itself (sm_90a). A CTA
// has 128 queries of one head, 64 to a warpgroup, and walks over the keys that some of them see;
// keys and values come ahead in rings. Step i of the walk has tile i of the keys and tile i - 1 of
// the values, so that two products run at once and softmax runs beside the second:
//
//   s_i = q x k_iᵀ                      begins
//   o   = o + p_(i-1) x v_(i-1)         begins
//   m, l, p_i of s_i                    while o accumulates
//   o   = o * 2^(old m - new m)
//
// The first step has no values and the last one no keys. Only tiles that cross an edge of what is
// visible look at places; p goes from the accumulators of one product to the operand of the next as
// it is.
#pragma once

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

Support supports_prefill(const ir::Graph& graph, const ir::Node& node,
                         const AttentionProblem& problem, const Settings& settings);

// `wanted`: 1, or 0 where another launch has the queries of this Run.
Launch prefill_launch(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                      const AttentionOperands& operands, const Settings& settings,
                      const Dim& wanted);

}  // namespace tenon::kernels
