// Element types, down to two bits. The names are those of the text forms (f4e2m1, u4, …).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tenon {

enum class DType : uint8_t {
  kUndefined,
  kBool,
  kI2,
  kU2,
  kI4,
  kU4,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF4E2M1,
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0,
  kF16,
  kBF16,
  kF32,
  kF64,
  kString,  // known, so that it can be refused by name
};

// "f32", "f8e4m3fn", "i4", …
std::string_view name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

// Width of one element in bits; 0 for kUndefined and kString.
int bit_width(DType dtype);
bool is_floating(DType dtype);  // all f* types, e8m0 too
bool is_integer(DType dtype);   // signed and unsigned, not bool
bool is_signed(DType dtype);    // integers with a sign and all floats but e8m0
// Narrower than a byte: several elements share one, the first in the low bits.
bool is_packed(DType dtype);
// One of the 4- and 8-bit floats, which only Tenon's own kernels understand.
bool is_small_float(DType dtype);

// Bytes that `elements` consecutive elements occupy; the last byte may be partly used.
// Throws UserError when the count overflows.
size_t storage_bytes(DType dtype, int64_t elements);

}  // namespace tenon
