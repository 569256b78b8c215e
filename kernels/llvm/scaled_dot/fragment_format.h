// How the codes of a number format become pairs of f16 or bf16 in registers: a table. Each word of
// packed weights holds several pairs; a rule says which bits of the word move where. Packing reads
// the same rules backwards, so a format is written down once.
//
// To add a format, add a row to kElementRules (or kScaleRules) in fragment_format.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace tenon::kernels {

// Bits of a 16-bit half that come from the word shifted left (right where negative).
struct BitMove {
  int shift = 0;
  uint16_t mask = 0;
};

// One pair: both halves of a word are treated alike. What the moves bring, with `magic` set, is the
// number plus `offset`; where one half cannot hold it all, less what `less` brings with its magic.
struct PairRule {
  std::vector<BitMove> moves;
  uint16_t magic = 0;
  double offset = 0;
  int first_bit = 0;  // where bit 0 of a code stands in the half; `field` for the others
  std::vector<BitMove> less = {};
  uint16_t less_magic = 0;
};

// Bits of a code that go to a half, shifted left (right where negative).
struct CodeMove {
  uint8_t mask = 0;
  int shift = 0;
};

struct FormatRule {
  DType codes{};    // what the file holds
  DType operand{};  // f16 or bf16
  int bits = 0;     // of a code
  // Bit of the half for each bit of a code, from its lowest one on, relative to first_bit.
  std::vector<int> field;
  std::vector<PairRule> pairs;  // of a word
  int exponent = 0;             // the half is the number times 2^exponent
  int lowest = 0, highest = 0;  // numbers are multiples of 2^lowest below 2^highest
  uint8_t inverted = 0;         // bits of a code that are stored inverted

  // The rule backwards, for packing: where the bits of pair number `pair` stand in a half.
  std::vector<CodeMove> code_moves(size_t pair) const;
};

// The half that one code alone makes.
uint16_t moved(uint8_t code, std::span<const CodeMove> moves);

// Null where there is none.
const FormatRule* element_rule(DType element, DType operand);
const FormatRule* scale_rule(DType scale, DType operand);
// Zero points of 2-bit codes are packed in nibbles, others in bytes.
const FormatRule* zero_rule(DType operand, int element_bits);

}  // namespace tenon::kernels
