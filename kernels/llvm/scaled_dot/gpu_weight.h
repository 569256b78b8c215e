// Weights of a dot as the GPU kernels want them, made once when the session is created.
//
// K is cut into groups of 16 words: bit field j of word row w of group g holds k = G*g + 16*j + w,
// with G = 16 codes per word (128 for nibbles, 64 for bytes).
//   words   [K / G][16][N']      u32; N' is N up to a multiple of 64
//   scales  [K / block][N']      in the file's own type
//   zeros   [K / block][N']      bytes, or f32 where the file has floats
// So one shift of the 16 word rows gives 16 consecutive k of N' columns, a slab: the right operand
// of one step of the matrix unit. Past K and N all codes are zero.
#pragma once

#include "codegen/tile/builder.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

inline constexpr int kSlab = 16;  // k of a slab

// How scales reach the sum.
enum class ScaleUse {
  kNone,
  kAccumulators,  // multiply the sum of their block
  kSlabs,         // multiply the elements, exactly
  kSplit,  // multiply the elements in f32, which are then split: the way that takes everything
};

struct GpuWeightLayout {
  DType element{};
  int bits = 0;
  int64_t k = 0, n = 0, padded_n = 0;
  int64_t block = 0;  // k per scale; k where there is one for all
  DType scale_type = DType::kUndefined;
  DType zero_type = DType::kUndefined;  // kU8, kI8 or kF32; kUndefined: none stored
  int64_t zero_offset = 0;
  ScaleUse use = ScaleUse::kNone;
  DType operand{};  // type in which the elements are multiplied: f16 or bf16

  int per_word() const { return 32 / bits; }
  int64_t group() const { return int64_t{kSlab} * per_word(); }
  int64_t groups() const { return (k + group() - 1) / group(); }
  int64_t blocks() const { return (k + block - 1) / block; }
  int parts() const { return use == ScaleUse::kSplit ? 3 : 1; }  // terms of an element
};

struct GpuLayoutAnswer {
  Support support;
  GpuWeightLayout layout;
};
GpuLayoutAnswer gpu_layout(const ir::Graph& graph, const ScaledDotProblem& problem);

struct GpuWeightBuffers {
  BufferArgument words, scales, zeros;
};
GpuWeightBuffers pack_gpu_weight(const ir::Graph& graph, const ScaledDotProblem& problem,
                                 const GpuWeightLayout& layout, Lowered& lowered);

// Emits what the layout means, for `columns` columns from `column` on.
class GpuWeightReader {
 public:
  GpuWeightReader(LaunchWriter& writer, const GpuWeightLayout& layout,
                  const GpuWeightBuffers& buffers, int columns);

  void at(codegen::ValueId column) { column_ = column; }
  Tile load_words(codegen::ValueId group);  // u32 [16, columns]
  // Slab j of the words as terms of the operand type. `block`: of the slab's scale.
  std::vector<Tile> slab(Tile words, int j, codegen::ValueId block);
  Tile load_scale(codegen::ValueId block);  // f32 [columns]

 private:
  codegen::ValueId block_offset(codegen::ValueId block);
  Tile dequantized_scale(Tile codes);
  Tile load_for_slab(codegen::ValueId buffer, codegen::ValueId block);  // [16, columns]
  Tile codes(Tile words, int j);                                        // u32
  Tile integers(Tile codes, codegen::ValueId block);                    // i32, less the zero point
  Tile small_floats(Tile codes);                                        // in the operand type
  Tile as_operand(Tile f32);

  codegen::Builder& b_;
  const GpuWeightLayout& layout_;
  int columns_;
  codegen::ValueId words_ = codegen::kNone, scales_ = codegen::kNone, zeros_ = codegen::kNone;
  codegen::ValueId column_ = codegen::kNone;
};

}  // namespace tenon::kernels
