// The left operand of a product, decoded from the words of packed units.
#include <array>
#include <cmath>

#include "kernels/llvm/scaled_dot/fragment_weight.h"

namespace tenon::kernels {

using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Side = FragmentLayout::Side;

Tile FragmentReader::constant(double value, Tile like) {
  const codegen::Type& type = b_.type(like);
  return b_.constant(type.dtype, value, type.shape);
}

FragmentPlaces FragmentPlaces::of_unit(const FragmentLayout& layout, ValueId ring, int unit) {
  const int64_t first = int64_t{unit} * layout.unit_words();
  FragmentPlaces places;
  for (int run = 0; run < layout.code_runs(); ++run) {
    places.codes.push_back({ring, first + int64_t{run} * kFragmentThreads * layout.code_width()});
  }
  places.scale = {ring, first + layout.code_words()};
  places.zero = {ring, first + layout.code_words() + layout.scale.words()};
  return places;
}

Tile FragmentReader::words(const Words& at, int width) {
  return b_.read(at.ring, slot_, {kFragmentThreads, width}, b_.index(at.first));
}

Tile FragmentReader::row_words(const Words& at, const Side& side, int word) {
  const Tile rows = b_.read(at.ring, slot_, {kRowPairs, 4}, b_.index(at.first + word),
                            {side.words_of_pair(), 0});
  return b_.reshape(rows, {kFragmentThreads, 1});
}

Tile FragmentReader::pairs(Tile words, const PairRule& rule) {
  const std::vector<int> shape = b_.type(words).shape;
  const auto all = [&](uint32_t half) {
    return b_.integer_constant(DType::kU32, half | half << 16, shape);
  };
  Tile out = kNone;
  for (const BitMove& move : rule.moves) {
    Tile moved = words;
    if (move.shift != 0) {
      const Tile distance = b_.integer_constant(DType::kU32, std::abs(move.shift), shape);
      moved = b_.binary(move.shift > 0 ? Fn::kShiftLeft : Fn::kShiftRight, words, distance);
    }
    moved = b_.binary(Fn::kAnd, moved, all(move.mask));
    out = out == kNone ? moved : b_.binary(Fn::kOr, out, moved);
  }
  if (rule.magic != 0) out = b_.binary(Fn::kOr, out, all(rule.magic));
  return b_.bitcast(out, layout_.operand);
}

// [threads, per_row] of one of the two rows of each thread.
Tile FragmentReader::side(const Side& side, const FormatRule* rule, const Words& at,
                          int row_half) {
  if (side.kind == Side::Kind::kBytes) {
    const Tile bytes = row_words(at, side, side.per_row == 4 ? row_half : 0);
    if (side.per_row == 2) return pairs(bytes, rule->pairs[static_cast<size_t>(row_half)]);
    const std::array<Tile, 2> both = {pairs(bytes, rule->pairs[0]), pairs(bytes, rule->pairs[1])};
    return b_.concat(both, 1);
  }
  const auto halves = [&](int word) {
    return b_.bitcast(row_words(at, side, word), layout_.operand);
  };
  if (side.per_row == 1) return b_.slice(halves(0), {0, row_half}, {kFragmentThreads, 1});
  if (side.per_row == 2) return halves(row_half);
  const std::array<Tile, 2> both = {halves(2 * row_half), halves(2 * row_half + 1)};
  return b_.concat(both, 1);
}

Tile FragmentReader::across(Tile side, int width) {
  const int count = b_.type(side).shape[1];
  const Tile single = b_.reshape(side, {kFragmentThreads * count, 1});
  const Tile repeated = b_.broadcast(single, {kFragmentThreads * count, width / count});
  return b_.reshape(repeated, {kFragmentThreads, width});
}

Tile FragmentReader::scales(const Words& at, int row_half) {
  Tile scale = side(layout_.scale, layout_.scale_rule, at, row_half);
  if (layout_.scale_type != DType::kF8E4M3FN) return scale;
  // Powers of two bring the bits of an e4m3 to its value, or as near as bf16 needs it.
  if (layout_.operand == DType::kF16) return b_.mul(scale, constant(0x1p8, scale));
  scale = b_.mul(scale, constant(0x1p119, scale));
  return b_.mul(scale, constant(0x1p119, scale));
}

Tile FragmentReader::operand(const FragmentPlaces& places, ValueId slot) {
  slot_ = slot;
  const FormatRule& rule = *layout_.element;
  const int width = layout_.code_width(), columns = 2 * width;
  std::array<Tile, 2> scale{kNone, kNone}, zero{kNone, kNone};
  for (int half = 0; half < 2; ++half) {
    const auto at = static_cast<size_t>(half);
    if (layout_.scale.kind != Side::Kind::kNone) scale[at] = across(scales(places.scale, half), columns);
    if (layout_.zero.kind == Side::Kind::kNone) continue;
    const FormatRule* zeros = zero_rule(layout_.operand);
    const Tile counted = side(layout_.zero, zeros, places.zero, half);
    zero[at] = across(b_.sub(counted, constant(zeros->pairs[0].offset, counted)), columns);
  }
  std::vector<Tile> parts;
  for (const Words& at : places.codes) {
    const Tile codes = words(at, width);
    for (size_t pair = 0; pair < rule.pairs.size(); ++pair) {
      const size_t half = pair % 2;
      Tile value = pairs(codes, rule.pairs[pair]);
      const double offset = rule.pairs[pair].offset + layout_.zero_offset;
      if (offset != 0) value = b_.sub(value, constant(offset, value));
      if (zero[half] != kNone) value = b_.sub(value, zero[half]);
      if (scale[half] != kNone) value = b_.mul(value, scale[half]);
      parts.push_back(value);
    }
  }
  const Tile all = b_.concat(parts, 0);
  // From (part, thread, word, h) to (row, k): see the head of fragment_weight.h.
  static const std::vector<int64_t> kFourWords = {0, 3, 4, 12, 1, 2, 5, 6, 7, 11, 8, 9, 10};
  static const std::vector<int64_t> kTwoWords = {0, 2, 3, 11, 12, 1, 4, 5, 6, 10, 7, 8, 9};
  return b_.permute(all, width == 4 ? kFourWords : kTwoWords, {kFragmentRows, kFragmentDepth});
}

}  // namespace tenon::kernels
