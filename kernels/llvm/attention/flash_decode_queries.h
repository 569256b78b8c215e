// How the queries of a step lie in shared memory: pairs of columns of eight rows together, so that
// the words that a warp reads at once are in as many banks.
#pragma once

#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// [rows, columns] as [columns / 2, 2 rows], to be stored 2 kBankRows apart.
Tile interleaved_queries(codegen::Builder& b, Tile queries, const FlashDecodeConfig& config);
// Back from what was loaded for all warps, [warps, kRows columns], to [warps kRows, columns].
Tile rows_of_queries(codegen::Builder& b, Tile interleaved, const FlashDecodeConfig& config);

}  // namespace tenon::kernels
