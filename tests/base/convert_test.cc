#include "base/convert.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon {
namespace {

TEST(Convert, PackedElementsShareABytesLowBitsFirst) {
  std::array<uint8_t, 3> bytes{};
  for (int i = 0; i < 5; ++i) store_code(DType::kU4, bytes.data(), i, static_cast<uint64_t>(i + 1));
  EXPECT_EQ(bytes, (std::array<uint8_t, 3>{0x21, 0x43, 0x05}));
  EXPECT_EQ(load_code(DType::kU4, bytes.data(), 3), 4u);
  store_code(DType::kU2, bytes.data(), 1, 3);
  EXPECT_EQ(bytes[0], 0x2d);
}

TEST(Convert, IntegersKeepEveryBit) {
  const int64_t large = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(load_integer(DType::kI64, &large, 0), large);
  const uint8_t nibbles = 0x8f;
  EXPECT_EQ(load_integer(DType::kI4, &nibbles, 0), -1);
  EXPECT_EQ(load_integer(DType::kI4, &nibbles, 1), -8);
  EXPECT_EQ(load_integer(DType::kU4, &nibbles, 1), 8);
  const float real = 1;
  EXPECT_THROW(load_integer(DType::kF32, &real, 0), InternalError);
}

TEST(Convert, BoolIsWhateverIsNotZero) {
  EXPECT_EQ(encode(DType::kBool, 0.25), 1u);
  EXPECT_EQ(encode(DType::kBool, -0.0), 0u);
  EXPECT_EQ(encode(DType::kBool, std::nan("")), 1u);
}

TEST(Convert, OutOfRangeIntegersBecomeTheSmallest) {
  EXPECT_EQ(encode(DType::kI32, 3e9), 0x80000000u);
  EXPECT_EQ(encode(DType::kI64, std::nan("")), uint64_t{1} << 63);
  EXPECT_EQ(encode(DType::kU64, 1e19), 10000000000000000000u);
  EXPECT_EQ(encode(DType::kI8, 300), 44u);
}

TEST(Convert, QuantizeSaturatesBeyondEveryInteger) {
  EXPECT_EQ(quantize(DType::kU8, 1e30, 3), 255u);
  EXPECT_EQ(quantize(DType::kI4, std::numeric_limits<double>::infinity(), 0), 7u);
  EXPECT_EQ(quantize(DType::kI4, -1e30, 0), 8u);
  EXPECT_EQ(quantize(DType::kU8, 2.5, 0), 2u);
  EXPECT_EQ(quantize(DType::kI8, std::nan(""), -2), 0x80u);
  EXPECT_EQ(quantize(DType::kF4E2M1, 1.0, 0.5), 3u);
}

TEST(Convert, SmallestAndLargestScalesDecodeExactly) {
  EXPECT_EQ(decode(DType::kF8E8M0, 0), std::ldexp(1.0, -127));
  EXPECT_EQ(decode(DType::kF8E8M0, 254), std::ldexp(1.0, 127));
  EXPECT_TRUE(std::isnan(decode(DType::kF8E8M0, 255)));
  EXPECT_EQ(decode(DType::kF8E4M3FN, 0x7e), 448.0);
  EXPECT_EQ(decode(DType::kF4E2M1, 0xf), -6.0);
}

TEST(Convert, DoublesRoundOnce) {
  // Halfway in bf16 plus a crumb that float32 cannot hold.
  EXPECT_EQ(encode(DType::kBF16, 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)), 0x3f81u);
}

}  // namespace
}  // namespace tenon
