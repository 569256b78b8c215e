#include "kernels/cudnn/versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;

TEST(CudnnVersionsTest, ReadAsPeopleWriteThem) {
  EXPECT_EQ(version_text(90800), "9.8.0");
  EXPECT_EQ(version_text(91002), "9.10.2");
}

TEST(CudnnVersionsTest, PlansWithoutADeviceAndLaterForBlackwell) {
  EXPECT_FALSE(plans_without_device(90701, 9));
  EXPECT_TRUE(plans_without_device(90800, 9));
  EXPECT_FALSE(plans_without_device(91801, 10));
  EXPECT_THAT(plans_without_device(91801, 12).reason, HasSubstr("needs cuDNN 9.19.0"));
  EXPECT_TRUE(plans_without_device(91900, 10));
}

TEST(CudnnVersionsTest, BlockScaledDotsFromWhereThreadsMayDriveSeveralGpus) {
  EXPECT_FALSE(block_scaled_dot(90600, 10));
  EXPECT_FALSE(block_scaled_dot(90700, 10));
  EXPECT_FALSE(block_scaled_dot(90900, 10));
  EXPECT_TRUE(block_scaled_dot(91000, 10));
  EXPECT_TRUE(block_scaled_dot(91000, 12));
  EXPECT_FALSE(block_scaled_dot(91300, 9));
}

TEST(CudnnVersionsTest, AGlobalScaleStaysOutsideUntilItIsHonoured) {
  for (const int version : {90900, 91000, 91200}) EXPECT_FALSE(honours_global_scale(version));
  EXPECT_TRUE(honours_global_scale(91300));
}

TEST(CudnnVersionsTest, BlockScaledResultsOnDataCentreBlackwellOnly) {
  EXPECT_FALSE(block_scaled_results(91300, 10));
  EXPECT_TRUE(block_scaled_results(91400, 10));
  EXPECT_FALSE(block_scaled_results(91400, 12));
  EXPECT_FALSE(block_scaled_results(91400, 9));
}

TEST(CudnnVersionsTest, SdpaLeavesOutTheVersionsThatAreWrong) {
  SdpaProblem problem{.compute_major = 9, .head_size = 128, .keys = 4096};
  EXPECT_TRUE(sdpa(90900, problem));
  EXPECT_FALSE(sdpa(91000, problem));
  EXPECT_FALSE(sdpa(91001, problem));
  EXPECT_TRUE(sdpa(91002, problem));
  EXPECT_TRUE(sdpa(91400, problem));
  problem.window = 512;
  EXPECT_FALSE(sdpa(91400, problem));
  EXPECT_TRUE(sdpa(91401, problem));
  problem.causal = true;
  EXPECT_TRUE(sdpa(91400, problem));
}

TEST(CudnnVersionsTest, SdpaTakesHeadsThatTheGpuHasRoomFor) {
  EXPECT_TRUE(sdpa(91900, {.compute_major = 9, .head_size = 256}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 8, .head_size = 256}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 9, .head_size = 100}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 7, .head_size = 64}));
}

TEST(CudnnVersionsTest, SdpaOfFp8HasGatesOfItsOwn) {
  SdpaProblem problem{.compute_major = 9, .head_size = 128, .fp8 = true};
  EXPECT_FALSE(sdpa(90000, problem));
  EXPECT_TRUE(sdpa(90100, problem));
  EXPECT_FALSE(sdpa(91000, problem));
  EXPECT_TRUE(sdpa(91001, problem));
  problem.has_bias = true;
  EXPECT_FALSE(sdpa(91900, problem));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 8, .head_size = 128, .fp8 = true}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 9, .head_size = 120, .fp8 = true}));
}

}  // namespace
}  // namespace tenon::cudnn
