#include "kernels/llvm/tile_types.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;

struct SmallFloat {
  DType dtype;
  Fn dequantize, quantize;
};

constexpr SmallFloat kSmallFloats[] = {
    {DType::kF4E2M1, Fn::kDequantizeF4E2M1, Fn::kQuantizeF4E2M1},
    {DType::kF8E4M3FN, Fn::kDequantizeF8E4M3FN, Fn::kQuantizeF8E4M3FN},
    {DType::kF8E4M3FNUZ, Fn::kDequantizeF8E4M3FNUZ, Fn::kQuantizeF8E4M3FNUZ},
    {DType::kF8E5M2, Fn::kDequantizeF8E5M2, Fn::kQuantizeF8E5M2},
    {DType::kF8E5M2FNUZ, Fn::kDequantizeF8E5M2FNUZ, Fn::kQuantizeF8E5M2FNUZ},
    {DType::kF8E8M0, Fn::kDequantizeF8E8M0, Fn::kQuantizeF8E8M0},
};

const SmallFloat* find_small_float(DType dtype) {
  for (const SmallFloat& format : kSmallFloats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// The low `bits` of i32 lanes as a number again.
Tile wrap_packed(Builder& b, Tile x, DType dtype) {
  const std::vector<int> shape = b.type(x).shape;
  const int bits = bit_width(dtype);
  if (!is_signed(dtype)) {
    return b.binary(Fn::kAnd, x, b.integer_constant(DType::kI32, (1 << bits) - 1, shape));
  }
  const Tile shift = b.integer_constant(DType::kI32, 32 - bits, shape);
  return b.binary(Fn::kShiftRight, b.binary(Fn::kShiftLeft, x, shift), shift);
}

// Truncates; what does not fit becomes the smallest integer on every machine.
Tile truncate(Builder& b, Tile x, DType to) {
  const DType from = b.type(x).dtype;
  const std::vector<int> shape = b.type(x).shape;
  const double limit = std::ldexp(1.0, bit_width(to) - 1);
  const Tile whole = b.unary(Fn::kTrunc, x);
  const Tile high = b.compare(Fn::kLess, whole, b.constant(from, limit, shape));
  const Tile low = b.compare(Fn::kGreaterEqual, whole, b.constant(from, -limit, shape));
  const Tile lowest = b.integer_constant(to, to == DType::kI32 ? INT32_MIN : INT64_MIN, shape);
  return b.select({b.binary(Fn::kAnd, high, low), b.cast(whole, to), lowest});
}

Tile float_to_u64(Builder& b, Tile x) {
  const DType from = b.type(x).dtype;
  const std::vector<int> shape = b.type(x).shape;
  const double two_to_63 = std::ldexp(1.0, 63);
  const Tile above = b.compare(Fn::kGreaterEqual, x, b.constant(from, two_to_63, shape));
  const Tile below = b.compare(Fn::kLess, x, b.constant(from, 2 * two_to_63, shape));
  const Tile folded =
      b.cast(truncate(b, b.sub(x, b.constant(from, two_to_63, shape)), DType::kI64), DType::kU64);
  const Tile top = b.integer_constant(DType::kU64, INT64_MIN, shape);
  return b.select({b.binary(Fn::kAnd, above, below), b.add(folded, top),
                   b.cast(truncate(b, x, DType::kI64), DType::kU64)});
}

Tile cast_to_integer(Builder& b, Tile x, DType to) {
  if (is_floating(b.type(x).dtype)) {
    if (to == DType::kU64) return float_to_u64(b, x);
    const bool wide = to == DType::kI64 || to == DType::kU32;
    x = truncate(b, x, wide ? DType::kI64 : DType::kI32);
  }
  const DType type = compute_type(to);
  if (b.type(x).dtype != type) x = b.cast(x, type);
  return is_packed(to) ? wrap_packed(b, x, to) : x;
}

// ONNX defines the cast to e8m0 on the bits of the float and ignores the sign.
Tile encode_e8m0(Builder& b, Tile x, EncodeRule rule) {
  const std::vector<int> shape = b.type(x).shape;
  const auto integer = [&](int64_t value) { return b.integer_constant(DType::kI32, value, shape); };
  const Tile bits = b.bitcast(x, DType::kI32);
  const Tile exponent =
      b.binary(Fn::kAnd, {b.binary(Fn::kShiftRight, bits, integer(23)), integer(255)});
  const Tile fraction = b.binary(Fn::kAnd, bits, integer(0x7fffff));
  const Tile finite = b.compare(Fn::kNotEqual, exponent, integer(255));
  Tile up = kNone;
  switch (rule.round) {
    case RoundMode::kUp:
      up = b.compare(Fn::kNotEqual, fraction, integer(0));
      break;
    case RoundMode::kDown:
      up = b.compare(Fn::kNotEqual, fraction, fraction);
      break;
    case RoundMode::kNearestEven: {
      const Tile tie = b.binary(Fn::kAnd, {b.compare(Fn::kEqual, fraction, integer(0x400000)),
                                           b.compare(Fn::kGreater, exponent, integer(0))});
      up = b.binary(Fn::kOr, b.compare(Fn::kGreater, fraction, integer(0x400000)), tie);
      break;
    }
  }
  up = b.binary(Fn::kAnd, up, finite);
  if (rule.saturate) {
    up = b.binary(Fn::kAnd, up, b.compare(Fn::kNotEqual, exponent, integer(254)));
  }
  return b.cast(b.add(exponent, b.select({up, integer(1), integer(0)})), DType::kU8);
}

Tile cast_to_float(Builder& b, Tile x, DType to, EncodeRule rule) {
  const DType wanted = to == DType::kF64 ? DType::kF64 : DType::kF32;
  if (b.type(x).dtype != wanted) x = b.cast(x, wanted);
  if (is_half(to)) return b.cast(x, to);
  if (to == DType::kF8E8M0) return encode_e8m0(b, x, rule);
  if (const SmallFloat* format = find_small_float(to)) {
    return b.quantize(format->quantize, x, rule.saturate);
  }
  return x;
}

}  // namespace

DType compute_type(DType dtype) {
  if (is_half(dtype) || is_small_float(dtype)) return DType::kF32;
  if (is_packed(dtype)) return DType::kI32;
  return dtype;
}

DType storage_type(DType dtype) {
  return is_packed(dtype) || is_small_float(dtype) ? DType::kU8 : dtype;
}

Support supports_type(DType dtype) {
  if (bit_width(dtype) > 0) return Support::yes();
  return Support::no(fmt::format("element type {} is not supported", name(dtype)));
}

Tile dequantize_tile(Builder& b, Tile codes, DType dtype) {
  if (is_half(dtype)) return b.cast(codes, DType::kF32);
  if (const SmallFloat* format = find_small_float(dtype)) return b.unary(format->dequantize, codes);
  if (!is_packed(dtype)) return codes;
  const Tile wide = b.cast(codes, DType::kI32);
  return is_signed(dtype) ? wrap_packed(b, wide, dtype) : wide;
}

Tile quantize_tile(Builder& b, Tile numbers, DType dtype) {
  if (is_half(dtype)) return b.cast(numbers, dtype);
  // Infinity is one of e5m2's numbers: it stays.
  if (const SmallFloat* format = find_small_float(dtype)) {
    return b.quantize(format->quantize, numbers, /*saturate=*/false);
  }
  if (!is_packed(dtype)) return numbers;
  const Tile mask =
      b.integer_constant(DType::kI32, (1 << bit_width(dtype)) - 1, b.type(numbers).shape);
  return b.cast(b.binary(Fn::kAnd, numbers, mask), DType::kU8);
}

Tile cast_to_codes(Builder& b, Tile numbers, DType from, DType to, EncodeRule rule) {
  if (from == to) return quantize_tile(b, numbers, to);
  if (to == DType::kBool) {
    const codegen::Type& type = b.type(numbers);
    const Tile zero = is_floating(type.dtype) ? b.constant(type.dtype, 0, type.shape)
                                              : b.integer_constant(type.dtype, 0, type.shape);
    return b.compare(Fn::kNotEqual, numbers, zero);
  }
  if (is_floating(to)) return cast_to_float(b, numbers, to, rule);
  const Tile integers = cast_to_integer(b, numbers, to);
  return is_packed(to) ? quantize_tile(b, integers, to) : integers;
}

Tile quantize_to_codes(Builder& b, Tile scaled, Tile zero_point, DType to, bool saturate) {
  const EncodeRule rule{saturate, RoundMode::kNearestEven};
  if (!is_integer(to)) return cast_to_float(b, scaled, to, rule);
  const DType type = b.type(scaled).dtype;
  const std::vector<int> shape = b.type(scaled).shape;
  const int bits = bit_width(to);
  const double lowest = is_signed(to) ? -std::ldexp(1.0, bits - 1) : 0.0;
  const double highest = std::ldexp(1.0, is_signed(to) ? bits - 1 : bits) - 1;
  Tile rounded = b.unary(Fn::kRound, scaled);
  if (zero_point != kNone) {
    if (b.type(zero_point).dtype != type) zero_point = b.cast(zero_point, type);
    rounded = b.add(rounded, zero_point);
  }
  // NaN is not greater than anything: it ends at the lowest number.
  const Tile low = b.constant(type, lowest, shape);
  rounded = b.select(b.compare(Fn::kGreater, rounded, low), rounded, low);
  rounded = b.min(rounded, b.constant(type, highest, shape));
  if (is_packed(to)) return quantize_tile(b, b.cast(rounded, DType::kI32), to);
  if (bits >= 32) return cast_to_integer(b, rounded, to);  // in f32 the highest does not fit
  return b.cast(b.cast(rounded, DType::kI32), to);
}

Tile rounded_to(Builder& b, Tile numbers, DType dtype) {
  const Tile codes = quantize_to_codes(b, numbers, kNone, dtype, /*saturate=*/true);
  const Tile rounded = dequantize_tile(b, codes, dtype);
  return b.type(rounded).dtype == DType::kF32 ? rounded : b.cast(rounded, DType::kF32);
}

Tile constant_tile(Builder& b, DType dtype, const void* data, int64_t index,
                   std::vector<int> shape) {
  const DType type = compute_type(dtype);
  if (dtype == DType::kBool || is_integer(dtype)) {
    return b.integer_constant(type, load_integer(dtype, data, index), std::move(shape));
  }
  return b.constant(type, load_element(dtype, data, index), std::move(shape));
}

}  // namespace tenon::kernels
