// The left operand of a product, dequantised from the words of packed units.
#include <algorithm>
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
  if (layout.sides_apart) return places;
  places.scale = {ring, first + layout.code_words()};
  places.zero = {ring, first + layout.code_words() + layout.scale.words()};
  return places;
}

Tile read_block(codegen::Builder& b, ValueId ring, ValueId stage, int rows,
                const FragmentLayout& layout, int block) {
  const int depth = layout.k_per_accumulator();
  if (depth == layout.depth()) return b.read(ring, stage, {rows, depth});
  return b.read(ring, stage, {rows, depth}, b.index(block * depth), {layout.depth(), 1});
}

Tile FragmentReader::words(const Words& at, int width) {
  return b_.read(at.ring, stage_, {kFragmentThreads, width}, b_.index(at.first));
}

Tile FragmentReader::row_words(const Words& at, const Side& side, int word) {
  if (!at.loaded.empty()) return at.loaded[static_cast<size_t>(word)];
  const Tile rows = b_.read(at.ring, stage_, {kRowPairs, 4}, b_.index(at.first + word),
                            {side.words_of_pair(), 0});
  return b_.reshape(rows, {kFragmentThreads, 1});
}

// Words that two pairs of rows share, shifted so that each finds its own where the first has them.
Tile FragmentReader::shared_words(const Words& at) {
  const std::vector<int> shape = {kFragmentThreads, 1};
  const auto number = [&](int64_t value) { return b_.integer_constant(DType::kU32, value, shape); };
  const auto read = [&] {
    const Tile rows = b_.read(at.ring, stage_, {kRowPairs / 2, 8}, b_.index(at.first), {1, 0});
    return b_.reshape(rows, shape);
  };
  const Tile words = at.loaded.empty() ? read() : at.loaded[0];
  const Tile second = b_.binary(Fn::kAnd, {b_.iota(DType::kU32, shape, 0), number(4)});
  return b_.binary(Fn::kShiftRight, words, b_.mul(second, number(2)));
}

Tile FragmentReader::in_both_halves(uint16_t bits, Tile like) {
  return b_.integer_constant(DType::kU32, bits | uint32_t{bits} << 16, b_.type(like).shape);
}

Tile FragmentReader::shifted(Tile words, int shift) {
  if (shift == 0) return words;
  const Tile distance = b_.integer_constant(DType::kU32, std::abs(shift), b_.type(words).shape);
  return b_.binary(shift > 0 ? Fn::kShiftLeft : Fn::kShiftRight, words, distance);
}

Tile FragmentReader::moved(Tile words, std::span<const BitMove> moves, uint16_t magic) {
  Tile out = kNone;
  for (const BitMove& move : moves) {
    const Tile moved =
        b_.binary(Fn::kAnd, {shifted(words, move.shift), in_both_halves(move.mask, words)});
    out = out == kNone ? moved : b_.binary(Fn::kOr, out, moved);
  }
  if (magic != 0) out = b_.binary(Fn::kOr, out, in_both_halves(magic, words));
  return b_.bitcast(out, layout_.operand);
}

// Two pairs of two moves each, those of the second further by the same distance: the bits of both
// are brought together at once.
int FragmentReader::distance(const PairRule& first, const PairRule& second) {
  if (first.moves.size() != 2 || second.moves.size() != 2 || !first.less.empty()) return 0;
  const int distance = second.moves[0].shift - first.moves[0].shift;
  for (size_t i = 0; i < 2; ++i) {
    const BitMove &a = first.moves[i], &b = second.moves[i];
    if (b.shift - a.shift != distance || a.mask != b.mask) return 0;
    if ((a.mask >> distance << distance) != a.mask) return 0;
  }
  const auto covered = [&](size_t i) {
    return first.moves[i].mask | first.moves[i].mask >> distance;
  };
  return (covered(0) & covered(1)) == 0 && first.magic == second.magic ? distance : 0;
}

std::array<Tile, 2> FragmentReader::both_pairs(Tile words, const PairRule& rule, int distance) {
  const auto covered = static_cast<uint16_t>(rule.moves[0].mask | rule.moves[0].mask >> distance);
  const auto rest = static_cast<uint16_t>(~covered);
  const auto bits = [&](size_t move, uint16_t mask) {
    return b_.binary(Fn::kAnd,
                     {shifted(words, rule.moves[move].shift), in_both_halves(mask, words)});
  };
  const Tile together = b_.binary(Fn::kOr, {bits(0, covered), bits(1, rest)});
  const auto all = static_cast<uint16_t>(rule.moves[0].mask | rule.moves[1].mask);
  return {moved(together, std::array{BitMove{0, all}}, rule.magic),
          moved(together, std::array{BitMove{distance, all}}, rule.magic)};
}

Tile FragmentReader::pairs(Tile words, const PairRule& rule) {
  const Tile out = moved(words, rule.moves, rule.magic);
  return rule.less.empty() ? out : b_.sub(out, moved(words, rule.less, rule.less_magic));
}

std::vector<Tile> FragmentReader::all_pairs(Tile words, std::span<const PairRule> rules) {
  std::vector<Tile> out;
  while (out.size() < rules.size()) {
    const PairRule& rule = rules[out.size()];
    const bool last = out.size() + 1 == rules.size();
    if (const int further = last ? 0 : distance(rule, rules[out.size() + 1])) {
      std::ranges::copy(both_pairs(words, rule, further), std::back_inserter(out));
    } else {
      out.push_back(pairs(words, rule));
    }
  }
  return out;
}

// [threads, per_row] of one of the two rows of each thread.
Tile FragmentReader::side(const Side& side, const FormatRule* rule, const Words& at, int row_half) {
  if (side.kind == Side::Kind::kNibbles) {
    const auto first = static_cast<size_t>(side.per_row == 4 ? 2 * row_half : row_half);
    if (side.per_row == 2) return pairs(shared_words(at), rule->pairs[first]);
    const Tile nibbles = row_words(at, side, 0);
    const std::array<Tile, 2> both = {pairs(nibbles, rule->pairs[first]),
                                      pairs(nibbles, rule->pairs[first + 1])};
    return b_.concat(both, 1);
  }
  if (side.kind == Side::Kind::kBytes) {
    const Tile bytes = row_words(at, side, side.per_row == 4 ? row_half : 0);
    if (side.per_row == 2) return pairs(bytes, rule->pairs[static_cast<size_t>(row_half)]);
    const std::array<Tile, 2> both = {pairs(bytes, rule->pairs[0]), pairs(bytes, rule->pairs[1])};
    return b_.concat(both, 1);
  }
  if (side.kind == Side::Kind::kFloats) {
    std::vector<Tile> floats;
    for (int i = 0; i < side.per_row; ++i) {
      const int word = row_half * side.per_row + i;
      floats.push_back(b_.bitcast(row_words(at, side, word), DType::kF32));
    }
    return floats.size() == 1 ? floats[0] : b_.concat(floats, 1);
  }
  const auto halves = [&](int word) {
    return b_.bitcast(row_words(at, side, word), layout_.operand);
  };
  if (side.per_row == 1) return b_.slice(halves(0), {0, row_half}, {kFragmentThreads, 1});
  if (side.per_row == 2) return halves(row_half);
  const std::array<Tile, 2> both = {halves(2 * row_half), halves(2 * row_half + 1)};
  return b_.concat(both, 1);
}

Tile FragmentReader::across(Tile side, int width, int slice) {
  int count = b_.type(side).shape[1];
  if (count == width) {  // two slices in a word: this one's
    const Tile slices = b_.reshape(side, {kFragmentThreads * count / 2, 2});
    side = b_.slice(slices, {0, slice}, {kFragmentThreads * count / 2, 1});
    count /= 2;
  }
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

// In f32, and rounded once.
Tile FragmentReader::shifted(Tile elements, Tile zero, Tile scale) {
  const auto number = [&](Tile tile) { return b_.cast(tile, DType::kF32); };
  const Tile distance = b_.sub({number(elements), number(zero)});
  return b_.cast(b_.mul(distance, number(scale)), layout_.operand);
}

// As DequantizeLinear does: scales of another type multiply in f32, and the product is rounded.
Tile FragmentReader::scaled(Tile elements, Tile scale) {
  if (layout_.scale.kind != Side::Kind::kFloats) return b_.mul(elements, scale);
  return b_.cast(b_.mul(b_.cast(elements, DType::kF32), scale), layout_.operand);
}

Tile FragmentReader::operand_of_block(Tile operand, int block) {
  const int depth = layout_.k_per_accumulator();
  if (depth == layout_.depth()) return operand;
  return b_.slice(operand, {0, block * depth}, {kFragmentRows, depth});
}

// From (row half, warp, g, t) to (warp, row half, g; token), where lane t has tokens 2 t and 2 t +
// 1 of each eight.
Tile FragmentReader::across_tokens(std::span<const Tile> row_words, int tokens) {
  constexpr int kLanes = 4;
  const Tile rows = b_.permute(b_.bitcast(b_.concat(row_words, 0), DType::kF32),
                               {0, 1, 2, 3, 4, 8, 5, 6, 7}, {kFragmentRows * kLanes, 1});
  const Tile pair = b_.broadcast(rows, {kFragmentRows * kLanes, 2});
  const Tile eight = b_.reshape(pair, {kFragmentRows, 2 * kLanes});
  if (tokens == 2 * kLanes) return eight;
  const std::vector<Tile> all(static_cast<size_t>(tokens / (2 * kLanes)), eight);
  return b_.concat(all, 1);
}

Tile FragmentReader::block_scales(const FragmentPlaces& places, ValueId stage, int block,
                                  int tokens, int groups) {
  std::vector<int> shape = {kFragmentRows, tokens};
  std::vector<int64_t> strides = {layout_.scale.per_row, 0};
  if (layout_.shares_scales()) {
    shape = {groups, kFragmentRows / groups * tokens};
    strides = {layout_.scale.words(), 0};
  }
  const Words& at = places.scale;
  if (!at.loaded.empty()) return across_tokens(at.loaded, tokens);
  const Tile bits = b_.read(at.ring, stage, shape, b_.index(at.first + block), strides);
  return b_.bitcast(b_.reshape(bits, {kFragmentRows, tokens}), DType::kF32);
}

Tile FragmentReader::zeros(const Words& at, int row_half) {
  if (layout_.real_zeros) return side(layout_.zero, nullptr, at, row_half);
  const FormatRule* rule = zero_rule(layout_.operand, layout_.element->bits);
  const Tile counted = side(layout_.zero, rule, at, row_half);
  return b_.sub(counted, constant(rule->pairs[0].offset, counted));
}

Tile FragmentReader::operand(const FragmentPlaces& places, ValueId stage) {
  stage_ = stage;
  return dequantized(places, layout_.scale.kind != Side::Kind::kNone && !layout_.scales_blocks());
}

Tile FragmentReader::unscaled_operand(const FragmentPlaces& places, ValueId stage,
                                      bool with_offsets) {
  stage_ = stage;
  return dequantized(places, /*has_scales=*/false, with_offsets);
}

// Lane t of a row has its word of unit t, or of t % 2 where there are two: u32 [threads, 1].
Tile FragmentReader::lane_words(std::span<const FragmentPlaces> units, int word) {
  const Words &first = units[0].scale, &second = units[1].scale;
  if (units.size() == 2) {
    const std::vector<int> shape = {kFragmentThreads, 1};
    const auto number = [&](int value) { return b_.integer_constant(DType::kU32, value, shape); };
    const Tile odd = b_.binary(Fn::kAnd, {b_.iota(DType::kU32, shape, 0), number(1)});
    return b_.select({b_.compare(Fn::kEqual, odd, number(0)), row_words(first, layout_.scale, word),
                      row_words(second, layout_.scale, word)});
  }
  const Tile rows = b_.read(first.ring, stage_, {kRowPairs, 4}, b_.index(first.first + word),
                            {layout_.scale.words_of_pair(), second.first - first.first});
  return b_.reshape(rows, {kFragmentThreads, 1});
}

// Scales of the two blocks of a part, in one of the two rows of each thread: [threads, 2].
Tile FragmentReader::lane_scales(std::span<const FragmentPlaces> units, int row_half, int part) {
  const int count = layout_.scale.per_row;
  if (layout_.scale.kind == Side::Kind::kBytes) {
    const auto pair = static_cast<size_t>(count == 4 ? part : row_half);
    return pairs(lane_words(units, count == 4 ? row_half : 0), layout_.scale_rule->pairs[pair]);
  }
  const int word = count == 1 ? 0 : row_half * layout_.accumulator_parts() + part;
  const Tile halves = b_.bitcast(lane_words(units, word), layout_.operand);
  if (count > 1) return halves;
  return b_.broadcast(b_.slice(halves, {0, row_half}, {kFragmentThreads, 1}),
                      {kFragmentThreads, 2});
}

std::vector<Tile> FragmentReader::block_factors(std::span<const FragmentPlaces> units,
                                                ValueId stage) {
  stage_ = stage;
  std::vector<Tile> factors;
  for (int part = 0; part < layout_.accumulator_parts(); ++part) {
    const std::array<Tile, 2> rows = {b_.cast(lane_scales(units, 0, part), DType::kF32),
                                      b_.cast(lane_scales(units, 1, part), DType::kF32)};
    // From (row half, warp, g, t, block) to (warp, row half, g; t, block).
    factors.push_back(
        b_.permute(b_.concat(rows, 0), {0, 1, 2, 3, 4, 5, 9, 6, 7, 8}, {kFragmentRows, 8}));
  }
  return factors;
}

Tile FragmentReader::dequantized(const FragmentPlaces& places, bool has_scales, bool with_offsets) {
  const FormatRule& rule = *layout_.element;
  const int width = layout_.code_width(), columns = 2 * width;
  const bool has_zeros = layout_.zero.kind != Side::Kind::kNone;
  const int slices = static_cast<int>(rule.pairs.size() + 3) / 4;  // of a word
  // Of rows g and g + 8, by slice.
  std::array<std::vector<Tile>, 2> scale, zero;
  for (int half = 0; half < 2; ++half) {
    const auto at = static_cast<size_t>(half);
    const Tile row_scales = has_scales ? scales(places.scale, half) : kNone;
    const Tile row_zeros = has_zeros ? zeros(places.zero, half) : kNone;
    for (int slice = 0; slice < slices; ++slice) {
      if (has_scales) scale[at].push_back(across(row_scales, columns, slice));
      if (has_zeros) zero[at].push_back(across(row_zeros, columns, slice));
    }
  }
  std::vector<Tile> parts;
  for (const Words& at : places.codes) {
    const std::vector<Tile> values = all_pairs(words(at, width), rule.pairs);
    for (size_t pair = 0; pair < rule.pairs.size(); ++pair) {
      const size_t half = pair % 2, slice = pair / 4;
      Tile value = values[pair];
      const double offset = with_offsets ? 0 : rule.pairs[pair].offset + layout_.zero_offset;
      if (offset != 0) value = b_.sub(value, constant(offset, value));
      if (layout_.real_zeros) {
        parts.push_back(shifted(value, zero[half][slice], scale[half][slice]));
        continue;
      }
      if (has_zeros) value = b_.sub(value, zero[half][slice]);
      if (layout_.lift != 0) value = b_.mul(value, constant(std::ldexp(1.0, layout_.lift), value));
      if (has_scales) value = scaled(value, scale[half][slice]);
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
