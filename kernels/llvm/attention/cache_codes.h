// Caches that hold codes instead of numbers (ir::Attention::cache_type), as launches around the
// kernels that attend:
//
//   append_codes   new heads, normed and rotated, become codes behind the past
//   dequantize_cache   the rows that count become numbers again, in scratch
#pragma once

#include "kernels/llvm/attention/place_heads.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// x / scale as codes of a cache, a byte each, and codes as f32: i4 is stored as code + 8.
Tile to_codes(codegen::Builder& b, Tile scaled, DType type);
Tile numbers_of(codegen::Builder& b, Tile codes, DType type);
// Bytes of two codes of i4 each.
Tile packed_codes(codegen::Builder& b, Tile low, Tile high);

// One cache of codes, [B, H, all_keys, width].
struct CacheCodes {
  BufferArgument codes;
  ir::ValueId scale;
  int64_t depth;  // of a head
};

// Heads of the new tokens at `strides` in `from`.
Launch append_codes_launch(const ir::Graph& graph, const AttentionProblem& problem,
                           const CacheCodes& cache, BufferArgument from, DType type,
                           const HeadStrides& strides, const HeadTiles& tiles);

// To rows of [B, H, all_keys, D] in `to`.
Launch dequantize_cache_launch(const ir::Graph& graph, const AttentionProblem& problem,
                               const CacheCodes& cache, BufferArgument to, DType type,
                               const HeadTiles& tiles);

}  // namespace tenon::kernels
