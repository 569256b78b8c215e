#include "distributed/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

using ::testing::HasSubstr;

TEST(ReductionTest, NamesAreReadBack) {
  for (const Reduction reduction : kReductions) {
    EXPECT_EQ(parse_reduction(name(reduction)), reduction);
  }
  EXPECT_EQ(name(Reduction::kAverage), "average");
  EXPECT_EQ(parse_reduction("avg"), std::nullopt);
  EXPECT_EQ(parse_reduction(""), std::nullopt);
}

TEST(ReductionTest, WhatIsNotANumberOfItsOwnIsNotReduced) {
  for (const Reduction reduction : kReductions) {
    for (const DType dtype : {DType::kI2, DType::kU2, DType::kI4, DType::kU4, DType::kF4E2M1}) {
      EXPECT_THAT(can_reduce(dtype, reduction).reason, HasSubstr("less than a byte"));
    }
    EXPECT_THAT(can_reduce(DType::kF8E8M0, reduction).reason, HasSubstr("scales"));
    EXPECT_FALSE(can_reduce(DType::kString, reduction));
    EXPECT_FALSE(can_reduce(DType::kUndefined, reduction));
    EXPECT_TRUE(can_reduce(DType::kF8E4M3FN, reduction));
    EXPECT_TRUE(can_reduce(DType::kBF16, reduction));
    EXPECT_TRUE(can_reduce(DType::kF64, reduction));
  }
}

TEST(ReductionTest, IntegersHaveNoAverageAndTruthsHaveMinAndMax) {
  for (const DType dtype : {DType::kI8, DType::kU16, DType::kI64}) {
    EXPECT_EQ(can_reduce(dtype, Reduction::kAverage).reason.find("no average of "), 0);
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kProd, Reduction::kMin, Reduction::kMax}) {
      EXPECT_TRUE(can_reduce(dtype, reduction));
    }
  }
  EXPECT_TRUE(can_reduce(DType::kBool, Reduction::kMin));
  EXPECT_TRUE(can_reduce(DType::kBool, Reduction::kMax));
  EXPECT_EQ(can_reduce(DType::kBool, Reduction::kSum).reason,
            "no sum of bool: ask for min (and) or max (or)");
}

TEST(ReductionTest, PackedElementsMoveInWholeBytes) {
  EXPECT_TRUE(can_move(DType::kF4E2M1, 2));
  EXPECT_TRUE(can_move(DType::kU4, 0));
  EXPECT_EQ(can_move(DType::kU4, 3).reason,
            "3 elements of u4 do not fill whole bytes; give a multiple of 2");
  EXPECT_FALSE(can_move(DType::kI2, 6));
  EXPECT_TRUE(can_move(DType::kI2, 8));
  EXPECT_TRUE(can_move(DType::kBool, 3));
  EXPECT_THAT(can_move(DType::kString, 1).reason, HasSubstr("string"));
  EXPECT_FALSE(can_move(DType::kUndefined, 1));
}

}  // namespace
}  // namespace tenon::distributed
