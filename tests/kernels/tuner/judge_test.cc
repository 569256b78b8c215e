// By how much two plans of a fusion may differ.
#include "kernels/tuner/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/convert.h"

namespace tenon::kernels {
namespace {

HostOutput output_of(DType dtype, const std::vector<double>& values) {
  HostOutput output{dtype, static_cast<int64_t>(values.size()), {}};
  output.bytes.resize(storage_bytes(dtype, output.elements));
  for (size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, output.bytes.data(), static_cast<int64_t>(i), values[i]);
  }
  return output;
}

bool agree(DType dtype, double got, double trusted, Precision precision = Precision::kExact) {
  return find_difference({output_of(dtype, {1.0, got})}, {output_of(dtype, {1.0, trusted})},
                         precision)
      .empty();
}

TEST(Judge, LastBitsMayDiffer) {
  EXPECT_TRUE(agree(DType::kF16, 1.0009765625, 1.0));
  EXPECT_FALSE(agree(DType::kF16, 1.03, 1.0));
  EXPECT_TRUE(agree(DType::kBF16, 1.0078125, 1.0));
  EXPECT_FALSE(agree(DType::kF32, 1.001, 1.0));
  EXPECT_TRUE(agree(DType::kF32, 1.001, 1.0, Precision::kTf32));
  EXPECT_TRUE(agree(DType::kF32, 1.02, 1.0, Precision::kInt8));
}

TEST(Judge, NanAndInfinityAreTheSameOrWrong) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(agree(DType::kF16, nan, 1.0));
  EXPECT_FALSE(agree(DType::kF16, 1.0, nan));
  EXPECT_TRUE(agree(DType::kF16, nan, nan));
  EXPECT_TRUE(agree(DType::kF32, infinity, infinity));
  EXPECT_FALSE(agree(DType::kF32, -infinity, infinity));
}

TEST(Judge, CodesMayBeTheNextOne) {
  EXPECT_TRUE(agree(DType::kI8, 5, 6));
  EXPECT_FALSE(agree(DType::kI8, 5, 7));
}

TEST(Judge, TellsTheFirstDifference) {
  std::vector<double> values(200'000, 1.0);
  const HostOutput trusted = output_of(DType::kF32, values);
  values[150'000] = 2;
  values[199'999] = 3;
  const std::string told =
      find_difference({output_of(DType::kF32, values)}, {trusted}, Precision::kExact);
  EXPECT_NE(told.find("element 150000 of output 0 is 2, and 1"), std::string::npos) << told;
}

}  // namespace
}  // namespace tenon::kernels
