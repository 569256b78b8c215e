#include "kernels/llvm/scaled_dot/fragment_format.h"

#include <map>

namespace tenon::kernels {
namespace {

constexpr DType kHalf = DType::kF16, kBrain = DType::kBF16;

// Integers: 0x6400 with q in the low bits is 1024 + q in f16, 0x5400 with q in bits 4 to 7 is
// 64 + q, 0x4300 with q in the low bits is 128 + q in bf16.
PairRule counted(int shift, uint16_t mask, uint16_t magic, double offset, int first_bit = 0) {
  return {{{shift, mask}}, magic, offset, first_bit};
}

std::vector<PairRule> counted_pairs(int bits, uint16_t magic, double offset) {
  std::vector<PairRule> pairs;
  for (int shift = 0; shift < 16; shift += bits) {
    pairs.push_back(counted(-shift, static_cast<uint16_t>((1 << bits) - 1), magic, offset));
  }
  return pairs;
}

std::vector<int> low_bits(int bits) {
  std::vector<int> field;
  for (int i = 0; i < bits; ++i) field.push_back(i);
  return field;
}

FormatRule integers(DType codes, DType operand, int bits) {
  const bool half = operand == kHalf;
  FormatRule rule{codes, operand, bits, low_bits(bits),
                  counted_pairs(bits, half ? 0x6400 : 0x4300, half ? 1024 : 128)};
  if (half && bits == 4) {  // half of the pairs need no shift
    rule.pairs = {counted(0, 0x000f, 0x6400, 1024), counted(0, 0x00f0, 0x5400, 64, 4),
                  counted(-8, 0x000f, 0x6400, 1024), counted(-8, 0x00f0, 0x5400, 64, 4)};
  }
  rule.highest = bits;
  return rule;
}

// All pairs of a word alike, so that a shift brings one to the place of another.
FormatRule nibbles(DType operand) {
  FormatRule rule = integers(DType::kU4, operand, 4);
  const PairRule first = rule.pairs[0];
  rule.pairs = counted_pairs(4, first.magic, first.offset);
  return rule;
}

// q - 128 in bf16, whose seven bits of mantissa hold 128 + q % 128 only: less 256 where the top bit
// of q is not set, else less 128.
FormatRule brain_bytes() {
  FormatRule rule{DType::kU8, kBrain, 8, low_bits(8), {}};
  for (const int shift : {0, -8}) {
    rule.pairs.push_back({{{shift, 0x007f}}, 0x4300, -128, 0, {{shift, 0x0080}}, 0x4300});
  }
  rule.highest = 8;
  rule.inverted = 0x80;
  return rule;
}

// Two codes of 8 bits: the upper one of the half, then the lower one.
FormatRule bytes(DType codes, DType operand, std::vector<int> field, BitMove upper, BitMove lower,
                 int exponent, int lowest, int highest) {
  FormatRule rule{codes, operand, 8, std::move(field), {}, exponent, lowest, highest};
  for (const BitMove& move : {upper, lower}) {
    rule.pairs.push_back({{move}});
    if (rule.field[7] != 15) continue;  // no sign
    const bool is_upper = &rule.pairs.back() == &rule.pairs.front();
    rule.pairs.back().moves.push_back({is_upper ? 0 : 8, 0x8000});
  }
  return rule;
}

std::vector<int> byte_field(int first, int sign) {
  std::vector<int> field;
  for (int i = 0; i < 7; ++i) field.push_back(first + i);
  field.push_back(sign);
  return field;
}

// Small floats stand in the half as they are; their exponents' biases differ by a constant, and so
// do those of their subnormal numbers.
const std::vector<FormatRule>& element_rules() {
  static const std::vector<FormatRule> kElementRules = {
      {DType::kF4E2M1,
       kHalf,
       4,
       {9, 10, 11, 15},
       {{{{0, 0x8e00}}},
        {{{8, 0x8e00}}},
        {{{1, 0x8200}, {-2, 0x0c00}}},
        {{{9, 0x8200}, {6, 0x0c00}}}},
       -14,
       -1,
       3},
      {DType::kF4E2M1,
       kBrain,
       4,
       {6, 7, 8, 15},
       {{{{0, 0x81c0}}},
        {{{6, 0x81c0}}},
        {{{1, 0x8000}, {-5, 0x01c0}}},
        {{{5, 0x8000}, {3, 0x01c0}}}},
       -126,
       -1,
       3},
      bytes(DType::kF8E4M3FN, kHalf, byte_field(7, 15), {-1, 0x3f80}, {7, 0x3f80}, -8, -9, 9),
      bytes(DType::kF8E4M3FN, kBrain, byte_field(4, 15), {-4, 0x07f0}, {4, 0x07f0}, -120, -9, 9),
      bytes(DType::kF8E5M2, kHalf, byte_field(8, 15), {0, 0x7f00}, {8, 0x7f00}, 0, -16, 16),
      bytes(DType::kF8E5M2, kBrain, byte_field(5, 15), {-3, 0x0fe0}, {5, 0x0fe0}, -112, -16, 16),
      integers(DType::kU4, kHalf, 4),
      integers(DType::kU4, kBrain, 4),
      integers(DType::kU2, kHalf, 2),
      integers(DType::kU2, kBrain, 2),
      integers(DType::kU8, kHalf, 8),
      brain_bytes(),
  };
  return kElementRules;
}

// Scales are positive and finite: no sign. Exponents of e8m0 are stored as the operand's own.
const std::vector<FormatRule>& scale_rules() {
  static const std::vector<FormatRule> kScaleRules = {
      bytes(DType::kF8E4M3FN, kHalf, byte_field(7, -1), {-1, 0x3f80}, {7, 0x3f80}, -8, -9, 9),
      bytes(DType::kF8E4M3FN, kBrain, byte_field(4, -1), {-4, 0x07f0}, {4, 0x07f0}, -120, -9, 9),
      bytes(DType::kF8E8M0, kHalf, {10, 11, 12, 13, 14, -1, -1, -1}, {2, 0x7c00}, {10, 0x7c00}, 0,
            -14, 16),
      bytes(DType::kF8E8M0, kBrain, {7, 8, 9, 10, 11, 12, 13, 14}, {-1, 0x7f80}, {7, 0x7f80}, 0,
            -126, 128),
  };
  return kScaleRules;
}

const FormatRule* find(const std::vector<FormatRule>& rules, DType codes, DType operand) {
  for (const FormatRule& rule : rules) {
    if (rule.codes == codes && rule.operand == operand) return &rule;
  }
  return nullptr;
}

}  // namespace

std::vector<CodeMove> FormatRule::code_moves(size_t pair) const {
  std::map<int, uint8_t> masks;  // by shift
  for (size_t bit = 0; bit < field.size(); ++bit) {
    if (field[bit] < 0) continue;
    const int target = pairs[pair].first_bit + field[bit];
    for (const std::vector<BitMove>* moves : {&pairs[pair].moves, &pairs[pair].less}) {
      for (const BitMove& move : *moves) {
        if ((move.mask >> target & 1) == 0) continue;
        masks[target - move.shift - static_cast<int>(bit)] |= static_cast<uint8_t>(1u << bit);
      }
    }
  }
  std::vector<CodeMove> moves;
  for (const auto& [shift, mask] : masks) moves.push_back({mask, shift});
  return moves;
}

uint16_t moved(uint8_t code, std::span<const CodeMove> moves) {
  uint32_t out = 0;
  for (const auto& [mask, shift] : moves) {
    const uint32_t bits = code & mask;
    out |= shift < 0 ? bits >> -shift : bits << shift;
  }
  return static_cast<uint16_t>(out);
}

const FormatRule* element_rule(DType element, DType operand) {
  return find(element_rules(), element, operand);
}

const FormatRule* scale_rule(DType scale, DType operand) {
  return find(scale_rules(), scale, operand);
}

const FormatRule* zero_rule(DType operand, int element_bits) {
  static const FormatRule kHalfZero = integers(DType::kU8, kHalf, 8);
  static const FormatRule kSmallBrainZero = integers(DType::kU8, kBrain, 8);  // below 128
  static const FormatRule kBrainZero = brain_bytes();
  static const FormatRule kHalfNibble = nibbles(kHalf), kBrainNibble = nibbles(kBrain);
  if (element_bits == 2) return operand == kHalf ? &kHalfNibble : &kBrainNibble;
  if (operand == kHalf) return &kHalfZero;
  return element_bits < 8 ? &kSmallBrainZero : &kBrainZero;
}

}  // namespace tenon::kernels
