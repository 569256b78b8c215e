// Floats of 16 bits from and to float32 without a branch, so that loops over them become vectors.
// The codes are those of base/convert.h, NaN included.
#pragma once

#include <bit>
#include <cstdint>

namespace tenon::distributed {

inline float from_bf16(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

// To the nearest, ties to even: a carry runs into the exponent, and from the largest into infinity.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}

// No subnormal float is met, which a thread may be set to take for zero.
inline float from_f16(uint16_t code) {
  const uint32_t magnitude = static_cast<uint32_t>(code & 0x7fff) << 13;
  const float small = std::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14F;
  const uint32_t normal = magnitude + (magnitude >= 31u << 23 ? 224u << 23 : 112u << 23);
  const uint32_t bits = magnitude < 1u << 23 ? std::bit_cast<uint32_t>(small) : normal;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(code & 0x8000) << 16);
}

inline uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // The last bit of one half is that of the smallest f16: the sum is rounded there.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  uint32_t code = magnitude < 0x38800000 ? small : normal;
  code = magnitude >= 0x47800000 ? 0x7c00 : code;
  code |= bits >> 16 & 0x8000;
  return static_cast<uint16_t>(value != value ? 0x7e00 : code);
}

}  // namespace tenon::distributed
