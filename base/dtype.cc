#include "base/dtype.h"

#include <array>

#include "base/checked.h"

namespace tenon {
namespace {

enum class Family : uint8_t { kNone, kBool, kSigned, kUnsigned, kFloat };

struct Entry {
  DType dtype;
  std::string_view name;
  int bits;
  Family family;
};

constexpr std::array kEntries{
    Entry{DType::kUndefined, "undefined", 0, Family::kNone},
    Entry{DType::kBool, "bool", 8, Family::kBool},
    Entry{DType::kI2, "i2", 2, Family::kSigned},
    Entry{DType::kU2, "u2", 2, Family::kUnsigned},
    Entry{DType::kI4, "i4", 4, Family::kSigned},
    Entry{DType::kU4, "u4", 4, Family::kUnsigned},
    Entry{DType::kI8, "i8", 8, Family::kSigned},
    Entry{DType::kU8, "u8", 8, Family::kUnsigned},
    Entry{DType::kI16, "i16", 16, Family::kSigned},
    Entry{DType::kU16, "u16", 16, Family::kUnsigned},
    Entry{DType::kI32, "i32", 32, Family::kSigned},
    Entry{DType::kU32, "u32", 32, Family::kUnsigned},
    Entry{DType::kI64, "i64", 64, Family::kSigned},
    Entry{DType::kU64, "u64", 64, Family::kUnsigned},
    Entry{DType::kF4E2M1, "f4e2m1", 4, Family::kFloat},
    Entry{DType::kF8E4M3FN, "f8e4m3fn", 8, Family::kFloat},
    Entry{DType::kF8E4M3FNUZ, "f8e4m3fnuz", 8, Family::kFloat},
    Entry{DType::kF8E5M2, "f8e5m2", 8, Family::kFloat},
    Entry{DType::kF8E5M2FNUZ, "f8e5m2fnuz", 8, Family::kFloat},
    Entry{DType::kF8E8M0, "f8e8m0", 8, Family::kFloat},
    Entry{DType::kF16, "f16", 16, Family::kFloat},
    Entry{DType::kBF16, "bf16", 16, Family::kFloat},
    Entry{DType::kF32, "f32", 32, Family::kFloat},
    Entry{DType::kF64, "f64", 64, Family::kFloat},
    Entry{DType::kString, "string", 0, Family::kNone},
};

constexpr bool entries_follow_the_enum() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i) return false;
  }
  return true;
}
static_assert(entries_follow_the_enum());

const Entry& entry(DType dtype) { return kEntries.at(static_cast<size_t>(dtype)); }

}  // namespace

std::string_view name(DType dtype) { return entry(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Entry& candidate : kEntries) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

int bit_width(DType dtype) { return entry(dtype).bits; }

bool is_floating(DType dtype) { return entry(dtype).family == Family::kFloat; }

bool is_integer(DType dtype) {
  return entry(dtype).family == Family::kSigned || entry(dtype).family == Family::kUnsigned;
}

bool is_signed(DType dtype) {
  return entry(dtype).family == Family::kSigned ||
         (entry(dtype).family == Family::kFloat && dtype != DType::kF8E8M0);
}

bool is_packed(DType dtype) { return bit_width(dtype) > 0 && bit_width(dtype) < 8; }

bool is_small_float(DType dtype) { return is_floating(dtype) && bit_width(dtype) <= 8; }

size_t storage_bytes(DType dtype, int64_t elements) {
  if (elements < 0) throw UserError("a tensor has a negative number of elements");
  const int64_t bits = checked_mul(elements, bit_width(dtype));
  return static_cast<size_t>(bits / 8 + (bits % 8 != 0));
}

}  // namespace tenon
