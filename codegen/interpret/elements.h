// Elements as tiles hold them in memory, and the C++ type that each is computed in.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/convert.h"
#include "base/dtype.h"
#include "base/error.h"

namespace tenon::codegen {

struct F16 {
  uint16_t code;
};
struct BF16 {
  uint16_t code;
};

template <typename T>
inline constexpr bool is_half_element = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;
template <typename T>
inline constexpr bool is_float_element = is_half_element<T> || std::is_floating_point_v<T>;
template <typename T>
inline constexpr bool is_integer_element = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// 16-bit floats are computed in f32, and rounded after every operation.
template <typename T>
using Computed = std::conditional_t<is_half_element<T>, float, T>;

// Unlike decode() and encode() of base/convert.h, which they agree with, these have no branches
// that keep a loop from becoming vectors.
inline float widen(F16 x) {
  const uint32_t magnitude = (x.code & 0x7fffu) << 13;
  const uint32_t sign = (x.code & 0x8000u) << 16;
  const auto finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t bits = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : finite;
  return std::bit_cast<float>(bits | sign);
}

inline F16 round_to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t odd = magnitude >> 13 & 1;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  // Adding 1/2 leaves what is below f16's normal range in units of its smallest number.
  const float in_units = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(in_units) - std::bit_cast<uint32_t>(0.5f);
  uint32_t code = magnitude < 113u << 23 ? subnormal : normal;
  code = magnitude >= 143u << 23 ? 0x7c00u : code;
  if (magnitude > 0x7f800000u) return {0x7e00};
  return {static_cast<uint16_t>(code | (bits >> 16 & 0x8000u))};
}

// To the 10 bits of mantissa that tf32 has, ties to even.
inline float round_to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t odd = bits >> 13 & 1;
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  return is_finite ? std::bit_cast<float>((bits + 0xfffu + odd) & ~0x1fffu) : x;
}

inline float widen(BF16 x) { return std::bit_cast<float>(uint32_t{x.code} << 16); }

inline BF16 round_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
}

template <typename T>
Computed<T> value_of(T element) {
  if constexpr (is_half_element<T>) {
    return widen(element);
  } else {
    return element;
  }
}

template <typename T>
T element_of(Computed<T> value) {
  if constexpr (std::is_same_v<T, F16>) {
    return round_to_f16(value);
  } else if constexpr (std::is_same_v<T, BF16>) {
    return round_to_bf16(value);
  } else {
    return value;
  }
}

// Calls visitor.operator()<T>() with the element type of `dtype`.
template <typename Visitor>
decltype(auto) visit_element(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kBool:
      return visitor.template operator()<bool>();
    case DType::kI8:
      return visitor.template operator()<int8_t>();
    case DType::kU8:
      return visitor.template operator()<uint8_t>();
    case DType::kI16:
      return visitor.template operator()<int16_t>();
    case DType::kU16:
      return visitor.template operator()<uint16_t>();
    case DType::kI32:
      return visitor.template operator()<int32_t>();
    case DType::kU32:
      return visitor.template operator()<uint32_t>();
    case DType::kI64:
      return visitor.template operator()<int64_t>();
    case DType::kU64:
      return visitor.template operator()<uint64_t>();
    case DType::kF16:
      return visitor.template operator()<F16>();
    case DType::kBF16:
      return visitor.template operator()<BF16>();
    case DType::kF32:
      return visitor.template operator()<float>();
    case DType::kF64:
      return visitor.template operator()<double>();
    default:
      throw InternalError("elements of type " + std::string(name(dtype)) +
                          " are not computed with");
  }
}

// For operations that only move elements: an unsigned integer of the same width.
template <typename Visitor>
decltype(auto) visit_width(DType dtype, Visitor&& visitor) {
  switch (bit_width(dtype)) {
    case 16:
      return visitor.template operator()<uint16_t>();
    case 32:
      return visitor.template operator()<uint32_t>();
    case 64:
      return visitor.template operator()<uint64_t>();
    default:
      return visitor.template operator()<uint8_t>();
  }
}

}  // namespace tenon::codegen
