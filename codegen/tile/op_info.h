// What is known of every operation of the tile IR, whoever looks at it: one table, read by the
// verifier, the text form, the interpreter, the analyses and the emitters.
#pragma once

#include <cstdint>
#include <string_view>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Operations that are checked, interpreted and emitted in one place.
enum class OpGroup : uint8_t {
  kIndex,
  kMake,         // tiles out of nothing, or of one number
  kElementwise,  // see Fn
  kShape,
  kProduct,  // tables and dots
  kMemory,
  kRing,
  kControl,
};

struct OpTraits {
  static constexpr int kAny = -1;

  bool has_more = false;  // operands behind those always there: parts, strides, initial values …
  int results = 1;        // kAny: as many as are carried
  int regions = 0;
  // Bit i: operand i is a buffer whose elements are read, or written.
  unsigned reads = 0, writes = 0;
  bool fetches = false;  // fills a stage of a ring, operand 0, ahead of who reads it
  int stored = -1;       // the operand whose type the text form states
};

struct OpInfo : OpTraits {
  Op op;
  std::string_view name;  // in the text form
  OpGroup group;
  int operands;  // those that are always there
};

const OpInfo& info(Op op);

inline bool is_elementwise(Op op) { return info(op).group == OpGroup::kElementwise; }

// Calls use(id) with each buffer of `mask`: info(op).reads or .writes.
template <typename Use>
void for_each_buffer(const Operation& op, unsigned mask, const Use& use) {
  for (size_t i = 0; mask >> i != 0; ++i) {
    if ((mask >> i & 1) != 0) use(op.operands[i]);
  }
}

}  // namespace tenon::codegen
