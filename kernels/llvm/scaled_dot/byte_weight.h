// A packed weight's codes as bytes in registers, for kernels that read each code once: signed, or
// unsigned and too large by a constant, where the CPU multiplies unsigned by signed bytes and the
// row stays signed.
//
// Even codes of eight lie in the low halves of a word's bytes and odd ones in the high halves, so
// one mask and one shift part them; rows of activations are stored in that order (int8_rows.h).
#pragma once

#include "kernels/llvm/scaled_dot/packed_weight.h"

namespace tenon::kernels {

// What 1 in a byte is worth: e2m1 is a multiple of one half, and int4 stays in the high half of its
// byte, where it needs no extension of its sign.
double int8_byte_scale(DType element);
// The bytes that 4-bit codes become, less the layout's zero offset.
std::vector<double> int8_table(const WeightLayout& layout);

// Unsigned bytes of an element: what 1 in them is worth, and by how much they are too large.
struct UnsignedBytes {
  double worth;
  int64_t excess;
};
UnsignedBytes unsigned_bytes(DType element);

struct ByteWeight {
  // Without `zero_offset`, u4 codes are bytes from 0 to 15. A `factor` is for codes of a table.
  ByteWeight(codegen::Builder& b, const WeightLayout& layout, codegen::ValueId bytes,
             bool zero_offset, double factor = 1);
  // As unsigned_bytes() has them, with the layout's zero offset still in them.
  static ByteWeight of_unsigned(codegen::Builder& b, const WeightLayout& layout,
                                codegen::ValueId bytes);

  const WeightLayout& layout;
  codegen::ValueId bytes = codegen::kNone;  // the words, read as bytes
  codegen::ValueId table = codegen::kNone;  // of 4-bit codes, where bits alone do not make them
  bool is_unsigned = false;

  int k_per_load() const { return layout.bits == 4 ? 8 : 4; }
  // Bytes [columns, 4] of k_per_load() values of k from `k` on, four by four. What lies 8 KiB
  // further is asked for: hardware follows a stream too late for loops this short.
  std::vector<codegen::ValueId> load(codegen::Builder& b, codegen::ValueId panel,
                                     codegen::ValueId k) const;

 private:
  ByteWeight(const WeightLayout& layout, codegen::ValueId bytes) : layout(layout), bytes(bytes) {}
};

}  // namespace tenon::kernels
