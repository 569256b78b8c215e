// Weights in the order in which matrix instructions take them from registers: no thread ever needs
// what another one loaded.
//
// The weight is cut into units of 128 rows (N) by 64 k, [N / 128][K / 64], each one contiguous run
// of u32: codes, then scales, then zero points. Of a unit every one of 256 threads owns 32
// elements: slices q of 16 k, four pairs J in each, two elements h in a pair. A thread is one of
// (2 halves, 4 warps, 8 g, 4 t):
//   row = 64 half + 16 warp + 8 (J % 2) + g        k = 16 q + 8 (J / 2) + 2 t + h
// which is how the left operand of mma.m16n8k16 and of wgmma lies. fragment_format.h says how the
// two elements of a pair stand in a word. Past N and K codes and scales are zero.
//
// Where every unit would repeat scales and zero points of large blocks at too high a price, they
// stand apart, once for each block: [N / 128][K / block], see apart_sides.h.
//
// Weights that are operands already (f16, bf16) need no dequantising: their units are plain [128,
// 64], which the matrix instruction reads from shared memory. Those of f32 are [128, 32], and
// rounded to tf32 on their way there: rows have 128 bytes either way.
#pragma once

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/fragment_format.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

class ScaleReader;

inline constexpr int kFragmentRows = 128, kFragmentDepth = 64, kFragmentThreads = 256;
inline constexpr int kRowPairs = kFragmentRows / 2;  // rows g and g + 8 of the same lanes
// What a unit has of a row of x, or of a plain weight.
inline constexpr int kFragmentRowBytes = 128;

struct FragmentLayout {
  // Scales or zero points of a unit: `per_row` for each row.
  //   nibbles, bytes, halves, floats
  //                          multiply elements (or are taken from them): a pair of rows together
  //   column                 f32 of row after row, which multiply the accumulators of their block
  //   shared                 likewise, one for all rows, four times: copies take 16 bytes
  struct Side {
    enum class Kind : uint8_t { kNone, kNibbles, kBytes, kHalves, kFloats, kColumn, kShared };
    Kind kind = Kind::kNone;
    int per_row = 0;
    bool holds_codes() const { return kind == Kind::kNibbles || kind == Kind::kBytes; }
    int words() const;  // of a unit
    int words_of_pair() const { return words() / kRowPairs; }
    int words_of_warp() const { return words() / (kFragmentRows / 16); }
    bool operator==(const Side&) const = default;
  };

  const FormatRule* element = nullptr;     // null: plain
  const FormatRule* scale_rule = nullptr;  // of scales in bytes
  DType operand{};                         // f16, bf16 or, of plain weights, f32 as tf32
  int row_terms = 1;                       // of the operand type that an element of x has
  bool widens = false;                     // rows of 16 bits, results of f32
  DType scale_type = DType::kUndefined;
  int64_t n = 0, k = 0, block = 0;
  Side scale, zero;
  bool scales_accumulators =
      false;                 // a scale per column, or one for all, multiplies the accumulators
  double zero_offset = 0;    // of all codes; unsigned codes stand for signed ones
  bool sides_apart = false;  // scales and zero points are in no unit
  bool real_zeros = false;   // zero points are floats: what they are taken from is rounded once
  int scale_shift = 0;       // added to the exponents of e8m0 scales so that products fit
  int lift = 0;      // elements are multiplied by 2^lift: accumulators stay above subnormal numbers
  int exponent = 0;  // accumulators come out times 2^exponent

  int64_t row_units() const { return (n + kFragmentRows - 1) / kFragmentRows; }
  int64_t blocks() const { return (k + block - 1) / block; }
  bool is_plain() const { return element == nullptr; }
  bool is_tf32() const { return operand == DType::kF32; }
  int depth() const { return is_tf32() ? kFragmentDepth / 2 : kFragmentDepth; }  // k of a unit
  int64_t steps() const { return (k + depth() - 1) / depth(); }
  // Accumulators of a block are multiplied before they are added to those of the others.
  bool scales_blocks() const {
    return scale.kind == Side::Kind::kColumn || scale.kind == Side::Kind::kShared;
  }
  bool shares_scales() const { return scale.kind == Side::Kind::kShared; }
  // Elements are operands as they are, and scales of blocks may multiply accumulators instead. Such
  // a sum has `accumulated_block()` k, and a unit has `accumulator_parts()` times two of them.
  bool can_accumulate_per_block() const;
  int accumulator_parts() const { return std::max(1, scale.per_row / 2); }
  int accumulated_block() const { return kFragmentDepth / 2 / accumulator_parts(); }
  const FormatRule& rule_of_zeros() const { return *zero_rule(operand, element->bits); }
  // What stands in words beside the codes of rows g and g + 8; zeros where it differs by k.
  std::array<double, 2> row_offsets() const;
  // Units of a stage that are one block, or parts of one.
  int units_together(int units) const;
  // Blocks of a unit whose accumulators are multiplied on their own, and k of each.
  int accumulators_per_unit() const { return scales_blocks() ? scale.per_row : 1; }
  int k_per_accumulator() const { return depth() / accumulators_per_unit(); }
  // Codes of a unit lie in runs of a few words for each thread.
  int code_width() const { return std::min(4, element->bits); }
  int code_runs() const { return std::max(1, element->bits / 4); }
  int code_words() const { return kFragmentThreads * (is_plain() ? 16 : element->bits); }
  int side_words() const { return scale.words() + zero.words(); }
  int unit_words() const { return code_words() + (sides_apart ? 0 : side_words()); }
  bool operator==(const FragmentLayout&) const = default;
};

struct FragmentLayoutAnswer {
  Support support;
  FragmentLayout layout;
};
FragmentLayoutAnswer fragment_layout(const ir::Graph& graph, const ScaledDotProblem& problem,
                                     Precision precision = Precision::kExact);

// Which rows of a weight the rows of a unit are. Two weights may share their units: of each 16 rows
// one has the first eight and the other one the rest, so that row n of both is in the same thread.
struct FragmentRows {
  int64_t first = 0;
  int half = -1;  // 0, 1: of a weight that shares its units

  int64_t column(int row) const {  // -1: another weight's
    if (half < 0) return first + row;
    return row / 8 % 2 == half ? first + row / 16 * 8 + row % 8 : -1;
  }
};

// Bits of a weight's codes that are packed inverted.
uint32_t flipped_bits(const ScaledDotProblem& problem, const FragmentLayout& layout);
// What a scale or a zero point is packed as, by what the file has for it: codes before the rule
// moves their bits, halves and floats as they are.
uint32_t scale_bits(const FragmentLayout& layout, const ScaleReader& scales, uint64_t stored);
uint32_t zero_bits(const ScaledDotProblem& problem, const FragmentLayout& layout,
                   const ScaleReader& zeros, uint64_t stored);

// Adds those rows of a weight to a unit, whose words begin as zeros.
using PackUnit = std::function<void(const FragmentRows& rows, int64_t step, uint32_t* words)>;
PackUnit unit_packer(const ir::Graph& graph, const ScaledDotProblem& problem,
                     const FragmentLayout& layout);
// The same for sides that stand apart, of one block instead of one step.
PackUnit side_packer(const ir::Graph& graph, const ScaledDotProblem& problem,
                     const FragmentLayout& layout);
// All units of a layout, one behind the other, or all of its sides.
using PackRowUnit = std::function<void(int64_t row_unit, int64_t step, uint32_t* words)>;
PackedConstant pack_units(const FragmentLayout& layout, const PackRowUnit& pack);
PackedConstant pack_sides(const FragmentLayout& layout, const PackRowUnit& pack);
// f32 for each row of the units, where scales multiply the accumulators.
PackedConstant column_scales(const ir::Graph& graph, const ScaledDotProblem& problem,
                             const FragmentLayout& layout);

// Where a stage holds what makes a unit. Its 128 rows need not be neighbours in the weight: each 16
// of them are one warp's.
struct FragmentPlaces {
  struct Words {
    codegen::ValueId ring = codegen::kNone;
    int64_t first = 0;
    // Instead of a stage, for every thread: those of its pair of rows, u32 [threads, 1] each.
    std::vector<Tile> loaded = {};
  };
  std::vector<Words> codes;  // as many as FragmentLayout::code_runs()
  Words scale, zero;

  // All of unit `unit` in one run.
  static FragmentPlaces of_unit(const FragmentLayout& layout, codegen::ValueId ring, int unit);
};

// Rows of x in a stage of [rows, depth]: what block number `block` of a unit is multiplied with.
Tile read_block(codegen::Builder& b, codegen::ValueId ring, codegen::ValueId stage, int rows,
                const FragmentLayout& layout, int block);

// Emits the left operand of a product from a stage that holds units: [128, 64] of the operand type.
class FragmentReader {
 public:
  FragmentReader(codegen::Builder& b, const FragmentLayout& layout) : b_(b), layout_(layout) {}

  Tile operand(const FragmentPlaces& places, codegen::ValueId stage);
  // The same without scales, for accumulators of one block each: see can_accumulate_per_block(). Or
  // codes with their offsets, row_offsets(), which must then be taken from the accumulators.
  Tile unscaled_operand(const FragmentPlaces& places, codegen::ValueId stage, bool with_offsets);
  // What multiplies such accumulators of two or four units, by parts of two blocks: f32 [128, 8],
  // column 2 u + b is block b of unit u's part. They are too small by block_factor().
  std::vector<Tile> block_factors(std::span<const FragmentPlaces> units, codegen::ValueId stage);
  double block_factor() const { return layout_.scale_type == DType::kF8E4M3FN ? 0x1p8 : 1; }
  // What multiplies the accumulators of block number `block` of the unit, f32 [128, tokens]: see
  // scales_blocks(). `groups` of rows may each have a block, whose shared scales then follow each
  // other.
  Tile block_scales(const FragmentPlaces& places, codegen::ValueId stage, int block, int tokens,
                    int groups = 1);
  // The part of an operand that is block number `block` of it.
  Tile operand_of_block(Tile operand, int block);

 private:
  using Words = FragmentPlaces::Words;
  Tile words(const Words& at, int width);  // u32 [threads, width]
  Tile in_both_halves(uint16_t bits, Tile like);
  Tile shifted(Tile words, int shift);
  Tile moved(Tile words, std::span<const BitMove> moves, uint16_t magic);
  Tile pairs(Tile words, const PairRule& rule);  // operand type [threads, 2 * width]
  static int distance(const PairRule& first, const PairRule& second);  // 0: they differ in more
  std::array<Tile, 2> both_pairs(Tile words, const PairRule& rule, int distance);
  std::vector<Tile> all_pairs(Tile words, std::span<const PairRule> rules);
  // Number `word` of those that a pair of rows has: u32 [threads, 1], shared by the lanes.
  Tile row_words(const Words& at, const FragmentLayout::Side& side, int word);
  Tile shared_words(const Words& at);
  Tile across_tokens(std::span<const Tile> row_words, int tokens);
  Tile side(const FragmentLayout::Side& side, const FormatRule* rule, const Words& at,
            int row_half);
  // Every element as often as k repeats it; `slice`: of two in a word.
  Tile across(Tile side, int width, int slice);
  Tile scales(const Words& at, int row_half);
  Tile dequantized(const FragmentPlaces& places, bool has_scales, bool with_offsets = false);
  Tile lane_words(std::span<const FragmentPlaces> units, int word);
  Tile lane_scales(std::span<const FragmentPlaces> units, int row_half, int part);
  Tile zeros(const Words& at, int row_half);
  Tile scaled(Tile elements, Tile scale);
  Tile shifted(Tile elements, Tile zero, Tile scale);
  Tile constant(double value, Tile like);

  codegen::Builder& b_;
  const FragmentLayout& layout_;
  codegen::ValueId stage_ = codegen::kNone;
};

}  // namespace tenon::kernels
