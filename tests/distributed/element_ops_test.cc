#include "distributed/element_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/convert.h"
#include "base/error.h"
#include "distributed/short_floats.h"
#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One element of each rank, as stored.
uint64_t reduce_codes(DType dtype, Reduction reduction, const std::vector<uint64_t>& codes) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  for (const uint64_t code : codes) {
    inputs.emplace_back(storage_bytes(dtype, 1));
    store_code(dtype, inputs.back().data(), 0, code);
  }
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes out(storage_bytes(dtype, 1));
  reduce_elements(dtype, reduction, pointers, out.data(), 1);
  return load_code(dtype, out.data(), 0);
}

double reduce(DType dtype, Reduction reduction, const std::vector<double>& values) {
  std::vector<uint64_t> codes;
  for (const double value : values) codes.push_back(encode(dtype, value));
  return decode(dtype, reduce_codes(dtype, reduction, codes));
}

TEST(ElementOpsTest, IntegersWrapAround) {
  EXPECT_EQ(reduce_codes(DType::kI8, Reduction::kSum, {0x7f, 1}), 0x80);
  EXPECT_EQ(reduce_codes(DType::kU8, Reduction::kSum, {0xff, 2}), 1);
  EXPECT_EQ(reduce_codes(DType::kU16, Reduction::kProd, {0xffff, 0xffff}), 1);
  EXPECT_EQ(reduce_codes(DType::kI32, Reduction::kProd, {0x80000000, 0xffffffff}), 0x80000000);
  EXPECT_EQ(reduce_codes(DType::kI64, Reduction::kSum, {uint64_t{1} << 63, ~uint64_t{0}}),
            (uint64_t{1} << 63) - 1);
}

TEST(ElementOpsTest, SixtyFourBitsKeepEveryBit) {
  const uint64_t large = (uint64_t{1} << 62) + 1;
  EXPECT_EQ(reduce_codes(DType::kI64, Reduction::kMax, {large - 1, large}), large);
  EXPECT_EQ(reduce_codes(DType::kU64, Reduction::kMax, {~uint64_t{0}, 1}), ~uint64_t{0});
  EXPECT_EQ(reduce_codes(DType::kI64, Reduction::kMax, {~uint64_t{0}, 1}), 1);
}

TEST(ElementOpsTest, AnyByteButZeroIsTrue) {
  EXPECT_EQ(reduce_codes(DType::kBool, Reduction::kMin, {2, 0x80}), 1);
  EXPECT_EQ(reduce_codes(DType::kBool, Reduction::kMin, {2, 0}), 0);
  EXPECT_EQ(reduce_codes(DType::kBool, Reduction::kMax, {0, 4}), 1);
}

TEST(ElementOpsTest, NaNWinsInMinAndMaxWhereverItStands) {
  for (const DType dtype :
       {DType::kF8E4M3FN, DType::kF8E4M3FNUZ, DType::kF8E5M2, DType::kF8E5M2FNUZ, DType::kF16,
        DType::kBF16, DType::kF32, DType::kF64}) {
    for (const Reduction reduction : kReductions) {
      for (size_t where = 0; where < 3; ++where) {
        std::vector<double> values{1, -2, 1.5};
        values[where] = kNaN;
        EXPECT_TRUE(std::isnan(reduce(dtype, reduction, values)))
            << name(reduction) << " of " << name(dtype) << " at " << where;
      }
    }
    EXPECT_EQ(reduce(dtype, Reduction::kMin, {1, -2, 1.5}), -2);
    EXPECT_EQ(reduce(dtype, Reduction::kMax, {1, -2, 1.5}), 1.5);
  }
}

TEST(ElementOpsTest, RoundsOnceAtTheEnd) {
  // In f16 steps 2048 + 1 + 1 would stay 2048, and so it would in bf16 with 256.
  EXPECT_EQ(reduce(DType::kF16, Reduction::kSum, {2048, 1, 1}), 2050);
  EXPECT_EQ(reduce(DType::kBF16, Reduction::kSum, {256, 1, 1}), 258);
  EXPECT_EQ(reduce(DType::kF8E4M3FN, Reduction::kSum, {16, 1, 1}), 18);
  // Beyond f16's range on the way.
  EXPECT_EQ(reduce(DType::kF16, Reduction::kSum, {60000, 60000, -60000}),
            decode(DType::kF16, encode(DType::kF16, 60000)));
  EXPECT_EQ(reduce(DType::kF16, Reduction::kAverage, {60000, 60000}),
            decode(DType::kF16, encode(DType::kF16, 60000)));
  EXPECT_EQ(reduce(DType::kF16, Reduction::kProd, {4096, 4096, 1.0 / 4096}), 4096);
}

TEST(ElementOpsTest, OutOfRangeIsWhatCastMakesOfIt) {
  EXPECT_EQ(reduce(DType::kF16, Reduction::kSum, {60000, 60000}), kInfinity);
  EXPECT_EQ(reduce(DType::kBF16, Reduction::kProd, {1e30, -1e30}), -kInfinity);
  EXPECT_EQ(reduce(DType::kF8E4M3FN, Reduction::kSum, {448, 448}), 448);
  EXPECT_EQ(reduce(DType::kF8E5M2, Reduction::kSum, {-57344, -57344}), -57344);
  EXPECT_EQ(reduce(DType::kF32, Reduction::kSum, {kInfinity, 1}), kInfinity);
  EXPECT_TRUE(std::isnan(reduce(DType::kF32, Reduction::kSum, {kInfinity, -kInfinity})));
}

// Every code, and floats around every one of them: halves between two as well.
TEST(ElementOpsTest, ShortFloatsHaveTheCodesOfCasts) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    for (const bool is_f16 : {true, false}) {
      const DType dtype = is_f16 ? DType::kF16 : DType::kBF16;
      const auto short_code = static_cast<uint16_t>(code);
      const float value = is_f16 ? from_f16(short_code) : from_bf16(short_code);
      const auto wanted = static_cast<float>(decode(dtype, code));
      ASSERT_EQ(std::isnan(value), std::isnan(wanted)) << code;
      if (!std::isnan(wanted)) {
        ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(wanted)) << code;
      }
      const uint32_t half = is_f16 ? 0x1000 : 0x8000;
      for (const uint32_t more : {0u, 1u, half / 2, half - 1, half, half + 1, 2 * half - 1}) {
        const float near = std::bit_cast<float>(std::bit_cast<uint32_t>(wanted) + more);
        ASSERT_EQ(is_f16 ? to_f16(near) : to_bf16(near), encode(dtype, near))
            << name(dtype) << " of " << near;
      }
    }
  }
}

// The same in vectors, as the reductions have it: products by one, of NaN the only one that casts
// give.
TEST(ElementOpsTest, EveryShortFloatTimesOneIsItself) {
  constexpr int64_t kCount = 0x10000;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> codes(kCount);
    std::vector<uint16_t> ones(kCount, static_cast<uint16_t>(encode(dtype, 1))), out(kCount);
    std::iota(codes.begin(), codes.end(), uint16_t{0});
    const std::vector<const void*> inputs{codes.data(), ones.data()};
    reduce_elements(dtype, Reduction::kProd, inputs, out.data(), kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[i], encode(dtype, decode(dtype, codes[i]))) << name(dtype) << " " << i;
    }
  }
}

// Of any size, those beyond the range and below the smallest too.
TEST(ElementOpsTest, FloatsBecomeTheShortOnesOfCasts) {
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 9973) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(to_f16(value), encode(DType::kF16, value)) << value;
    ASSERT_EQ(to_bf16(value), encode(DType::kBF16, value)) << value;
  }
}

TEST(ElementOpsTest, OfZerosTheFirstStays) {
  EXPECT_TRUE(std::signbit(reduce(DType::kF32, Reduction::kMax, {-0.0, 0.0})));
  EXPECT_FALSE(std::signbit(reduce(DType::kF16, Reduction::kMin, {0.0, -0.0})));
}

TEST(ElementOpsTest, TheOutputMayBeAnyInput) {
  constexpr int64_t kCount = 3000;  // more than one block
  for (const Reduction reduction : kReductions) {
    for (size_t where = 0; where < 3; ++where) {
      std::vector<Bytes> inputs;
      for (uint64_t seed = 0; seed < 3; ++seed) {
        inputs.push_back(random_elements(DType::kBF16, kCount, seed));
      }
      std::vector<Bytes> before = inputs;
      const std::vector<const void*> pointers{inputs[0].data(), inputs[1].data(), inputs[2].data()};
      reduce_elements(DType::kBF16, reduction, pointers, inputs[where].data(), kCount);
      EXPECT_EQ(wrong_reduction(DType::kBF16, reduction, before, 0, inputs[where].data(), kCount),
                "");
    }
  }
}

TEST(ElementOpsTest, WhatCannotBeReducedIsAnError) {
  const unsigned char one = 1;
  unsigned char out = 0;
  const std::vector<const void*> inputs{&one};
  EXPECT_THROW(reduce_elements(DType::kU4, Reduction::kSum, inputs, &out, 1), InternalError);
  EXPECT_THROW(reduce_elements(DType::kI8, Reduction::kAverage, inputs, &out, 1), InternalError);
}

}  // namespace
}  // namespace tenon::distributed
