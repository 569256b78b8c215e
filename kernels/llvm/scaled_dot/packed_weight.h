// Weights of a dot as the host kernels want them, made once when the session is created.
//
// Columns (N) are cut into panels of `columns`; inside a panel K runs slowest:
//   words   [panel][K / per_word][column]  u32, the codes of per_word consecutive k, lowest first
//   halves  [panel][K][column]             f16 or bf16 as in the file, widened in registers
//   plain   [panel][K][column]             f32, for weights that need no dequantising
//   scales  [panel][K / block][column]     in the file's own type; 8-bit ones as bf16, which holds
//                                          them exactly and becomes f32 by a shift
//   zeros   [panel][K / block][column]     f16 or f32
// A lane is a column, so one vector load brings per_word k of a whole register of columns, and a
// code becomes a number by one shift and one table look-up. Columns past N are zero.
#pragma once

#include "codegen/tile/builder.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct WeightLayout {
  DType element{};  // logical type of a code; kF32 when plain
  int bits = 32;
  int columns = 0;
  int64_t panels = 0, k = 0, n = 0;
  int64_t block = 0;                     // k per scale; multiple of per_word; k, or 1, for all of k
  DType scale_type = DType::kUndefined;  // kUndefined: no scales
  bool eight_bit_scales = false;         // in the file; kept as bf16
  DType zero_type = DType::kUndefined;   // kUndefined: none stored
  int64_t zero_offset = 0;
  uint32_t flipped = 0;  // bits of a word that differ from the file's: u4 less 8 is stored as i4

  bool plain() const { return bits == 32; }
  bool is_half() const { return bits == 16; }
  int per_word() const { return is_half() ? 1 : 32 / bits; }
  DType word_type() const { return plain() || is_half() ? element : DType::kU32; }
  int64_t blocks() const { return (k + block - 1) / block; }
};

// The layout that keeps codes as they are. Unsupported: why such a weight must be expanded.
struct LayoutAnswer {
  Support support;
  WeightLayout layout;
};
LayoutAnswer packed_layout(const ir::Graph& graph, const ScaledDotProblem& problem, int columns);
// f32 values, dequantised once: for odd K and types without a packed form.
WeightLayout plain_layout(const ScaledDotProblem& problem, int columns);

struct PackedWeight {
  WeightLayout layout;
  PackedConstant elements, scales, zeros;  // empty where the layout has none
};
PackedWeight pack_weight(const ir::Graph& graph, const ScaledDotProblem& problem,
                         const WeightLayout& layout);

// Emits what the layout means. Buffers are the kernel's parameters for the three arrays.
struct WeightReader {
  WeightLayout layout;
  codegen::ValueId elements = codegen::kNone, scales = codegen::kNone, zeros = codegen::kNone;

  // Words of k = per_word * word … of `columns` columns.
  codegen::ValueId load_words(codegen::Builder& b, codegen::ValueId panel,
                              codegen::ValueId word) const;
  // Fetches the words that are `ahead` rows further into the caches; past a panel lies the next
  // one.
  void prefetch_words(codegen::Builder& b, codegen::ValueId panel, codegen::ValueId word,
                      int64_t ahead) const;
  void prefetch_scale(codegen::Builder& b, codegen::ValueId panel, codegen::ValueId block,
                      int64_t ahead) const;
  // f32 values (zero_offset subtracted, not scaled) of code `j` of each word.
  codegen::ValueId dequantize(codegen::Builder& b, codegen::ValueId words, int j) const;
  codegen::ValueId load_scale(codegen::Builder& b, codegen::ValueId panel,
                              codegen::ValueId block) const;
  codegen::ValueId load_zero(codegen::Builder& b, codegen::ValueId panel,
                             codegen::ValueId block) const;
};

}  // namespace tenon::kernels
