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
  EXPECT_TRUE(sdpa(90900, {.compute_major = 9, .head_size = 256}));
  EXPECT_FALSE(sdpa(90900, {.compute_major = 9, .head_size = 128, .value_size = 264}));
  EXPECT_FALSE(sdpa(90900, {.compute_major = 8, .head_size = 136}));
  EXPECT_TRUE(sdpa(91002, {.compute_major = 8, .head_size = 136}));
  EXPECT_FALSE(sdpa(90800, {.compute_major = 10, .head_size = 136}));
  EXPECT_TRUE(sdpa(90900, {.compute_major = 10, .head_size = 136, .queries = 64}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 9, .head_size = 100}));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 7, .head_size = 64}));
}

// Each row at the last version that it refuses and the first that it does not.
TEST(CudnnVersionsTest, SdpaOfOldVersionsLacksForms) {
  const auto expect_since = [](int last_without, int first_with, const SdpaProblem& problem) {
    EXPECT_FALSE(sdpa(last_without, problem)) << last_without;
    EXPECT_TRUE(sdpa(first_with, problem)) << first_with;
  };
  SdpaProblem one{.head_size = 64, .queries = 1, .keys = 64, .causal = true};
  expect_since(90900, 91002, one);
  one.queries = SdpaProblem::kOpen;  // a Run may bring one
  expect_since(90900, 91002, one);
  one.queries = 2;
  EXPECT_TRUE(sdpa(90800, one));

  SdpaProblem window{.head_size = 64, .queries = 64, .keys = 64, .window = 8, .causal = true};
  EXPECT_TRUE(sdpa(90800, window));
  window.from_end = true;
  expect_since(90900, 91002, window);
  window.keys = 65;
  EXPECT_TRUE(sdpa(90800, window));
  window.causal = false;
  expect_since(90900, 91002, window);

  expect_since(91299, 91300, {.head_size = 64, .queries = 64, .has_sinks = true});
  EXPECT_FALSE(sdpa(91900, {.head_size = 64, .queries = 1, .has_sinks = true}));
  SdpaProblem paged{.head_size = 136, .queries = 64, .has_lengths = true, .is_paged = true};
  expect_since(90900, 91002, paged);
  paged.has_lengths = false;
  EXPECT_FALSE(sdpa(91900, paged));
}

TEST(CudnnVersionsTest, SdpaFromTheLastKeyNeedsEnoughKeys) {
  SdpaProblem problem{.head_size = 64, .queries = 65, .keys = 64, .from_end = true};
  EXPECT_FALSE(sdpa(91900, problem));
  problem.has_lengths = true;
  EXPECT_TRUE(sdpa(91900, problem));
  problem.has_lengths = false;
  problem.keys = 65;
  EXPECT_TRUE(sdpa(91900, problem));
  problem.has_bias = true;
  EXPECT_FALSE(sdpa(91900, problem));
}

TEST(CudnnVersionsTest, SdpaIsAskedAboutFromADescription) {
  EXPECT_FALSE(sdpa_without_device(91002, 9));
  EXPECT_TRUE(sdpa_without_device(91100, 9));
  EXPECT_FALSE(sdpa_without_device(91800, 10));
  EXPECT_TRUE(sdpa_without_device(91900, 10));
}

TEST(CudnnVersionsTest, TheReasonNamesTheVersion) {
  EXPECT_EQ(sdpa(91001, {.head_size = 64}).reason,
            "SDPA of cuDNN 9.10.0 and 9.10.1 gives wrong results (this is cuDNN 9.10.1)");
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
  const SdpaProblem latent{.compute_major = 10, .head_size = 192, .value_size = 128, .fp8 = true};
  EXPECT_FALSE(sdpa(91800, latent));
  EXPECT_TRUE(sdpa(91900, latent));
  EXPECT_FALSE(sdpa(91900, {.compute_major = 10, .head_size = 192, .fp8 = true}));
  SdpaProblem from_end{.compute_major = 10, .head_size = 128, .from_end = true, .fp8 = true};
  EXPECT_FALSE(sdpa(90600, from_end));
  EXPECT_TRUE(sdpa(90700, from_end));
  from_end.compute_major = 9;
  EXPECT_FALSE(sdpa(91900, from_end));
  SdpaProblem wide{.compute_major = 10, .head_size = 128, .fp8 = true, .fp8_result = false};
  EXPECT_FALSE(sdpa(91200, wide));
  EXPECT_TRUE(sdpa(91300, wide));
  wide.compute_major = 9;
  EXPECT_FALSE(sdpa(91900, wide));
}

}  // namespace
}  // namespace tenon::cudnn
