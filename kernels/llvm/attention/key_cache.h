// What an attention kernel reads, one tensor each for q, keys and values: new heads are normed and
// rotated, caches appended to first (present = past, then the new rows, then zeros), and codes in
// them dequantised. For the host 16-bit keys and values are converted to f32.
#pragma once

#include "kernels/llvm/attention/place_heads.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct HeadRows {
  BufferArgument buffer;
  HeadStrides strides;
};

struct AttentionOperands {
  HeadRows q, keys, values;
};

// Rows of a cache of codes as words of 32 bits; `rows` of each head.
HeadRows code_words(const AttentionProblem& problem, BufferArgument codes, const Dim& rows,
                    int64_t depth);

struct PlacedOperands {
  AttentionOperands numbers;
  AttentionOperands codes;  // keys and values as code_words(), where the cache has codes
};

// Adds launches and scratch to `lowered` where operands are not read as they are given.
// `reads_numbers`: 0 where kernels of a Run read a cache's codes themselves, else 1.
PlacedOperands placed_operands(const ir::Graph& graph, const ir::Node& node,
                               const AttentionProblem& problem, const HeadTiles& tiles,
                               const Dim& reads_numbers, Lowered& lowered);

// The same with keys and values in f32.
AttentionOperands widened_operands(const ir::Graph& graph, const ir::Node& node,
                                   const AttentionProblem& problem, const HeadTiles& tiles,
                                   Lowered& lowered);

}  // namespace tenon::kernels
