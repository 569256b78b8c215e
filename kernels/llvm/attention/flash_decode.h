// Flash-decoding: attention of few queries on many keys, where TMA loads run ahead of the
// arithmetic (sm_90a). The keys of a head are split over CTAs (split-KV), those of a CTA over
// warps:
//
//   rows    queries x heads that share their keys: the 16 rows of a matrix instruction
//   stage   16 or 32 keys and values for each warp, fetched ahead in rings
//   warp    multiplies all rows with keys of its own and keeps a maximum, a sum and an output
//   CTA     merges its warps through shared memory, and stores what its split has
//   head    whoever arrives last merges the splits, in their order
//
// How long a cache is comes from the device: splits are cut from the keys that are visible, and one
// without any still arrives.
#pragma once

#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/key_cache.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// `adds_token`: of one query, with operands_of_past(); the launch brings its token into the caches.
// `wanted`: 1, or 0 where another launch has the queries of this Run.
Launch flash_decode_launch(const ir::Graph& graph, const ir::Node& node,
                           const AttentionProblem& problem, const AttentionOperands& operands,
                           const FlashDecodeConfig& config, int sm_count, bool adds_token,
                           const Dim& wanted, Lowered& lowered);

}  // namespace tenon::kernels
