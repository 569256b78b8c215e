#include "base/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"

namespace tenon {
namespace {

// A float type with a sign, `exponent_bits` and `mantissa_bits`, described by its special codes.
// Codes here are magnitudes: the sign bit is left out, except in `nan`.
struct FloatFormat {
  int mantissa_bits;
  int bias;
  int bits;
  uint32_t largest;       // code of the largest finite value
  uint32_t infinity;      // 0: the type has none
  uint32_t nan;           // what NaN encodes to, with its sign bit
  bool negative_zero;     // false: the code of -0 is NaN (…FNUZ)
  bool may_saturate;      // Cast's `saturate` speaks of the 8-bit types only
  bool always_saturates;  // no code to flee to
};

constexpr FloatFormat kF4E2M1Format{1, 1, 4, 0x7, 0, 0x8, true, false, true};
constexpr FloatFormat kF8E4M3FNFormat{3, 7, 8, 0x7e, 0, 0x7f, true, true, false};
constexpr FloatFormat kF8E4M3FNUZFormat{3, 8, 8, 0x7f, 0, 0x80, false, true, false};
constexpr FloatFormat kF8E5M2Format{2, 15, 8, 0x7b, 0x7c, 0x7e, true, true, false};
constexpr FloatFormat kF8E5M2FNUZFormat{2, 16, 8, 0x7f, 0, 0x80, false, true, false};
constexpr FloatFormat kF16Format{10, 15, 16, 0x7bff, 0x7c00, 0x7e00, true, false, false};
constexpr FloatFormat kBF16Format{7, 127, 16, 0x7f7f, 0x7f80, 0x7fc0, true, false, false};

const FloatFormat* float_format(DType dtype) {
  switch (dtype) {
    case DType::kF4E2M1:
      return &kF4E2M1Format;
    case DType::kF8E4M3FN:
      return &kF8E4M3FNFormat;
    case DType::kF8E4M3FNUZ:
      return &kF8E4M3FNUZFormat;
    case DType::kF8E5M2:
      return &kF8E5M2Format;
    case DType::kF8E5M2FNUZ:
      return &kF8E5M2FNUZFormat;
    case DType::kF16:
      return &kF16Format;
    case DType::kBF16:
      return &kBF16Format;
    default:
      return nullptr;
  }
}

double decode_float(const FloatFormat& format, uint32_t code) {
  const uint32_t sign_bit = 1u << (format.bits - 1);
  const bool negative = (code & sign_bit) != 0;
  const uint32_t magnitude = code & (sign_bit - 1);
  const double sign = negative ? -1.0 : 1.0;
  if (!format.negative_zero && code == sign_bit) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude > format.largest) {
    const bool infinite = format.infinity != 0 && magnitude == format.infinity;
    return sign * (infinite ? std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN());
  }
  const uint32_t hidden = 1u << format.mantissa_bits;
  const uint32_t exponent = magnitude >> format.mantissa_bits;
  const uint32_t fraction = magnitude & (hidden - 1);
  const uint32_t significand = exponent == 0 ? fraction : fraction | hidden;
  const int scale = static_cast<int>(exponent == 0 ? 1 : exponent) - format.bias;
  return sign * std::ldexp(static_cast<double>(significand), scale - format.mantissa_bits);
}

// The magnitude's code after rounding to nearest even; may exceed `largest`.
uint32_t round_magnitude(const FloatFormat& format, double magnitude) {
  if (magnitude == 0) return 0;
  const int lowest_exponent = 1 - format.bias;
  const int exponent = std::max(std::ilogb(magnitude), lowest_exponent);
  // Far beyond any code: keep the shift below within 32 bits.
  if (exponent > lowest_exponent + (1 << (format.bits - 1 - format.mantissa_bits))) return ~0u;
  const double in_quanta = std::ldexp(magnitude, format.mantissa_bits - exponent);
  const auto quanta = static_cast<uint32_t>(std::nearbyint(in_quanta));
  // `quanta` carries the hidden bit of a normal number, which is one step of the exponent field.
  return (static_cast<uint32_t>(exponent - lowest_exponent) << format.mantissa_bits) + quanta;
}

uint32_t encode_float(const FloatFormat& format, double value, bool saturate) {
  const uint32_t sign = std::signbit(value) ? 1u << (format.bits - 1) : 0;
  // With no NaN to give, NaN becomes a zero of the other sign.
  if (std::isnan(value)) return format.always_saturates ? format.nan ^ sign : format.nan;
  uint32_t code = std::isinf(value) ? ~0u : round_magnitude(format, std::fabs(value));
  if (code > format.largest) {
    const bool clamp = format.always_saturates || (format.may_saturate && saturate);
    if (!clamp && format.infinity == 0) {
      return format.negative_zero ? format.nan | sign : format.nan;
    }
    code = clamp ? format.largest : format.infinity;
  }
  if (code == 0 && !format.negative_zero) return 0;
  return code | sign;
}

// ONNX defines the cast to e8m0 on the bits of a float32 and ignores the sign.
uint32_t encode_e8m0(double value, EncodeRule rule) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  constexpr uint32_t kNaN = 0xff;
  const uint32_t exponent = (bits >> 23) & 0xff;
  const uint32_t fraction = bits & 0x7fffff;
  if (exponent == kNaN) return kNaN;
  constexpr uint32_t kHalf = 0x400000;
  bool up = false;
  switch (rule.round) {
    case RoundMode::kUp:
      up = fraction != 0;
      break;
    case RoundMode::kDown:
      break;
    // A tie goes up, except below the smallest normal float.
    case RoundMode::kNearestEven:
      up = fraction > kHalf || (fraction == kHalf && exponent > 0);
      break;
  }
  if (up && exponent == kNaN - 1 && rule.saturate) return exponent;
  return exponent + (up ? 1 : 0);
}

// Truncates; out of range gives the smallest integer, as x86 does and numpy and ORT inherit.
template <typename Integer>
Integer truncate_to(double value) {
  constexpr double kLimit = -static_cast<double>(std::numeric_limits<Integer>::min());
  const double truncated = std::trunc(value);
  if (!(truncated >= -kLimit && truncated < kLimit)) return std::numeric_limits<Integer>::min();
  return static_cast<Integer>(truncated);
}

uint64_t encode_integer(DType dtype, double value) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (dtype == DType::kU64 && value >= kTwoTo63 && value < 2 * kTwoTo63) {
    return static_cast<uint64_t>(value);
  }
  // The narrow types wrap what fits 32 bits.
  const bool wide = dtype == DType::kI64 || dtype == DType::kU64 || dtype == DType::kU32;
  const int64_t integer = wide ? truncate_to<int64_t>(value) : truncate_to<int32_t>(value);
  const int bits = bit_width(dtype);
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return static_cast<uint64_t>(integer) & mask;
}

int64_t sign_extend(uint64_t code, int bits) {
  const int shift = 64 - bits;
  return static_cast<int64_t>(code << shift) >> shift;
}

[[noreturn]] void refuse(DType dtype) {
  throw InternalError("elements of type " + std::string(name(dtype)) + " have no number");
}

}  // namespace

double decode(DType dtype, uint64_t code) {
  if (const FloatFormat* format = float_format(dtype)) {
    return decode_float(*format, static_cast<uint32_t>(code));
  }
  switch (dtype) {
    case DType::kBool:
      return (code & 0xff) != 0;
    case DType::kF8E8M0:
      if ((code & 0xff) == 0xff) return std::numeric_limits<double>::quiet_NaN();
      return std::ldexp(1.0, static_cast<int>(code & 0xff) - 127);
    case DType::kF32:
      return std::bit_cast<float>(static_cast<uint32_t>(code));
    case DType::kF64:
      return std::bit_cast<double>(code);
    case DType::kU64:
      return static_cast<double>(code);
    case DType::kUndefined:
    case DType::kString:
      refuse(dtype);
    default:
      break;
  }
  const int bits = bit_width(dtype);
  if (is_signed(dtype)) return static_cast<double>(sign_extend(code, bits));
  return static_cast<double>(code & ((uint64_t{1} << bits) - 1));
}

uint64_t encode(DType dtype, double value, EncodeRule rule) {
  if (const FloatFormat* format = float_format(dtype)) {
    return encode_float(*format, value, rule.saturate);
  }
  switch (dtype) {
    case DType::kBool:
      return value != 0;
    case DType::kF8E8M0:
      return encode_e8m0(value, rule);
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kF64:
      return std::bit_cast<uint64_t>(value);
    case DType::kUndefined:
    case DType::kString:
      refuse(dtype);
    default:
      return encode_integer(dtype, value);
  }
}

uint64_t quantize(DType dtype, double scaled, double zero_point, EncodeRule rule) {
  // The zero point of an 8-bit float is 0 and never added: -0 stays -0.
  if (!is_integer(dtype)) {
    return encode(dtype, dtype == DType::kF4E2M1 ? scaled + zero_point : scaled, rule);
  }
  const int bits = bit_width(dtype);
  const double lowest = is_signed(dtype) ? -std::ldexp(1.0, bits - 1) : 0.0;
  const double highest = std::ldexp(1.0, is_signed(dtype) ? bits - 1 : bits) - 1;
  const double shifted = std::nearbyint(scaled) + zero_point;
  if (!(shifted > lowest)) return encode(dtype, lowest);
  return encode(dtype, std::min(shifted, highest));
}

uint64_t load_code(DType dtype, const void* data, int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const int bits = bit_width(dtype);
  if (bits == 0) refuse(dtype);
  if (bits < 8) {
    const int per_byte = 8 / bits;
    const int shift = static_cast<int>(index % per_byte) * bits;
    return (bytes[index / per_byte] >> shift) & ((1u << bits) - 1);
  }
  uint64_t code = 0;
  std::memcpy(&code, bytes + index * (bits / 8), static_cast<size_t>(bits / 8));
  return code;
}

void store_code(DType dtype, void* data, int64_t index, uint64_t code) {
  auto* bytes = static_cast<unsigned char*>(data);
  const int bits = bit_width(dtype);
  if (bits == 0) refuse(dtype);
  if (bits < 8) {
    const int per_byte = 8 / bits;
    const int shift = static_cast<int>(index % per_byte) * bits;
    const unsigned mask = ((1u << bits) - 1) << shift;
    unsigned char& byte = bytes[index / per_byte];
    byte = static_cast<unsigned char>((byte & ~mask) | ((code << shift) & mask));
    return;
  }
  std::memcpy(bytes + index * (bits / 8), &code, static_cast<size_t>(bits / 8));
}

double load_element(DType dtype, const void* data, int64_t index) {
  return decode(dtype, load_code(dtype, data, index));
}

void store_element(DType dtype, void* data, int64_t index, double value, EncodeRule rule) {
  store_code(dtype, data, index, encode(dtype, value, rule));
}

int64_t load_integer(DType dtype, const void* data, int64_t index) {
  const uint64_t code = load_code(dtype, data, index);
  if (dtype == DType::kBool) return code != 0;
  if (!is_integer(dtype)) {
    throw InternalError("expected integer elements, got " + std::string(name(dtype)));
  }
  return is_signed(dtype) ? sign_extend(code, bit_width(dtype)) : static_cast<int64_t>(code);
}

}  // namespace tenon
