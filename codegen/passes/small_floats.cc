#include "codegen/passes/small_floats.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace tenon::codegen {

namespace {

// Codes are magnitudes here, without the sign bit.
struct Format {
  Fn dequantize, quantize;
  DType dtype;
  int bits, mantissa, bias;
  int largest;          // code of the largest finite value
  int infinity;         // 0: the format has none
  int nan;              // with its sign bit
  bool zero_is_signed;  // otherwise the code of -0 is NaN
};

constexpr Format kFormats[] = {
    {Fn::kDequantizeF8E4M3FN, Fn::kQuantizeF8E4M3FN, DType::kF8E4M3FN, 8, 3, 7, 0x7e, 0, 0x7f,
     true},
    {Fn::kDequantizeF8E4M3FNUZ, Fn::kQuantizeF8E4M3FNUZ, DType::kF8E4M3FNUZ, 8, 3, 8, 0x7f, 0, 0x80,
     false},
    {Fn::kDequantizeF8E5M2, Fn::kQuantizeF8E5M2, DType::kF8E5M2, 8, 2, 15, 0x7b, 0x7c, 0x7e, true},
    {Fn::kDequantizeF8E5M2FNUZ, Fn::kQuantizeF8E5M2FNUZ, DType::kF8E5M2FNUZ, 8, 2, 16, 0x7f, 0,
     0x80, false},
    {Fn::kDequantizeF4E2M1, Fn::kQuantizeF4E2M1, DType::kF4E2M1, 4, 1, 1, 0x7, 0, 0x8, true},
};

const Format& format_of(Fn fn) {
  for (const Format& format : kFormats) {
    if (format.dequantize == fn || format.quantize == fn) return format;
  }
  throw InternalError(fmt::format("{} is no small-float conversion", name(fn)));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The sign of an f32 as bit 31, from the sign bit of a code.
Expr with_sign(Expr magnitude, Expr codes, int bits) {
  Expr sign = (codes >> (bits - 1)) << 31;
  return (magnitude.bits(DType::kU32) | sign).bits(DType::kF32);
}

Expr dequantize_e8m0(Expr codes) {
  constexpr int kTwoToMinus127 = 0x00400000, kNanBits = 0x7fc00000;
  Expr wide = codes.as(DType::kU32);
  Expr lowest = wide == 0, bits = select(lowest, kTwoToMinus127, wide << 23);
  return select(wide == 255, kNanBits, bits).bits(DType::kF32);
}

// Both have f16's layout in fewer bits, and converting f16 is one instruction.
Expr dequantize_e4m3fn(Expr codes) {
  constexpr int kKept = 0xbf80;  // sign, and the four low bits of f16's exponent with its fraction
  Expr bits = (codes.bits(DType::kI8).as(DType::kI16) << 7).bits(DType::kU16) & kKept;
  // All ones carry into f16's highest exponent bit, which makes NaN of them.
  Expr nan = (bits + 0x80) & 0x4000;
  return (bits | nan).bits(DType::kF16).as(DType::kF32) * 256.0;  // the biases differ by 8
}

Expr dequantize_e5m2(Expr codes) {
  return (codes.as(DType::kU16) << 8).bits(DType::kF16).as(DType::kF32);
}

Expr dequantize_e2m1(Expr codes) {
  std::vector<double> values;
  for (uint64_t code = 0; code < 16; ++code) values.push_back(decode(DType::kF4E2M1, code));
  Builder& b = codes.builder();
  return {b, b.lookup(b.table(DType::kF32, values), codes.id())};
}

// ONNX rounds to e8m0 on the bits of the f32 and ignores the sign.
Expr quantize_e8m0(Expr x, EncodeRule rule) {
  constexpr int kHalf = 0x400000;
  Expr bits = x.bits(DType::kI32) & 0x7fffffff;
  Expr exponent = bits >> 23, fraction = bits & 0x7fffff;
  Expr up = fraction > kHalf;
  switch (rule.round) {
    case RoundMode::kUp:
      up = fraction != 0;
      break;
    case RoundMode::kDown:
      up = fraction < 0;
      break;  // never
    // A tie goes up, except below the smallest normal float.
    case RoundMode::kNearestEven: {
      Expr tie = fraction == kHalf;
      up = up | (tie & (exponent > 0));
      break;
    }
  }
  Expr last = exponent >= (rule.saturate ? 254 : 255);
  return select({up & !last, exponent + 1, exponent}).as(DType::kU8);
}

// |x| as a code, rounded to nearest even; may exceed the largest.
Expr quantize_magnitude(const Format& format, Expr x) {
  int dropped = 23 - format.mantissa;
  Expr magnitude = x.bits(DType::kI32) & 0x7fffffff;
  Expr rebiased = magnitude - ((127 - format.bias) << 23);
  Expr odd = (rebiased >> dropped) & 1;
  Expr normal = (rebiased + odd + ((1 << (dropped - 1)) - 1)) >> dropped;
  Expr quanta = abs(x) * std::ldexp(1.0, format.bias - 1 + format.mantissa);
  Expr subnormal = round_even(quanta).as(DType::kI32);
  int smallest_normal = (128 - format.bias) << 23;
  return select(magnitude < smallest_normal, subnormal, normal);
}

}  // namespace

Expr dequantize_small_float(Fn fn, Expr codes) {
  if (fn == Fn::kDequantizeF8E8M0) return dequantize_e8m0(codes);
  if (fn == Fn::kDequantizeF4E2M1) return dequantize_e2m1(codes);
  if (fn == Fn::kDequantizeF8E4M3FN) return dequantize_e4m3fn(codes);
  if (fn == Fn::kDequantizeF8E5M2) return dequantize_e5m2(codes);
  const Format& format = format_of(fn);  // one of the FNUZ formats: no infinity, and -0 is NaN
  Expr wide = codes.as(DType::kU32);
  Expr magnitude = wide & 0x7f;
  // The exponent moved to f32's bias; a subnormal is its fraction times a power of two.
  Expr normal =
      ((magnitude << (23 - format.mantissa)) + ((127 - format.bias) << 23)).bits(DType::kF32);
  Expr subnormal = magnitude.bits(DType::kI32).as(DType::kF32) *
                   std::ldexp(1.0, 1 - format.bias - format.mantissa);
  Expr value = select(magnitude < (1 << format.mantissa), subnormal, normal);
  Expr nan = wide == format.nan;
  return select(nan, kNan, with_sign(value, wide, format.bits));
}

Expr quantize_small_float(Fn fn, Expr x, EncodeRule rule) {
  if (fn == Fn::kQuantizeF8E8M0) return quantize_e8m0(x, rule);
  const Format& format = format_of(fn);
  bool always_saturates = format.dtype == DType::kF4E2M1;
  int beyond = format.infinity != 0 ? format.infinity : format.nan;
  if (rule.saturate || always_saturates) beyond = format.largest;

  Expr code = quantize_magnitude(format, x);
  code = select(code > format.largest, beyond, code);
  Expr sign = ((x.bits(DType::kU32) >> 31) << (format.bits - 1)).bits(DType::kI32);
  Expr out = code | sign;
  if (!format.zero_is_signed) out = select(code == 0, code, out);
  // With no NaN to give, NaN becomes a zero of the other sign.
  Expr nan = always_saturates ? sign ^ format.nan : sign.like_integer(DType::kI32, format.nan);
  return select(is_nan(x), nan, out).as(DType::kU8);
}

}  // namespace tenon::codegen
