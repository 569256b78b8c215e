#include "provider/compatibility.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon::provider {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Compatibility::Kind;

const OfferedDevice kHopper{"sm_90a", {}, true};
const OfferedDevice kCpu{"x86_64", {"avx2", "fma"}, false};

Compatibility judge(const ContextOrigin& origin, const std::vector<OfferedDevice>& devices) {
  return compatibility(origin, devices);
}

TEST(ContextOriginTest, ItsLineParsesBack) {
  const ContextOrigin origin{"1.2.3", {"sm_90a", "sm_100a"}, {"avx2", "fma"}, "12 of 14"};
  const ContextOrigin read = parse_context_origin(origin.text());
  EXPECT_EQ(read.version, "1.2.3");
  EXPECT_THAT(read.targets, ElementsAre("sm_90a", "sm_100a"));
  EXPECT_THAT(read.features, ElementsAre("avx2", "fma"));
  EXPECT_EQ(read.machine_code, "12 of 14");
  EXPECT_FALSE(read.weights_outside);
  ContextOrigin outside = origin;
  outside.weights_outside = true;
  EXPECT_TRUE(parse_context_origin(outside.text()).weights_outside);
}

TEST(ContextOriginTest, KeysOfLaterVersionsArePassedOver) {
  EXPECT_THAT(parse_context_origin("tenon-context-2;targets=sm_80;later=x;;").targets,
              ElementsAre("sm_80"));
}

TEST(ContextOriginTest, WhatIsNoneIsRefused) {
  for (const std::string text : {"", "tenon-context-1;targets=sm_90a", "hello", "tenon-context-2",
                                 "tenon-context-2;targets=", "tenon-context-2;targets"}) {
    EXPECT_THROW(parse_context_origin(text), UserError) << text;
  }
  EXPECT_THROW(parse_context_origin("tenon-context-2;targets=" + std::string(1 << 20, 'x')),
               UserError);
}

TEST(CompatibilityTest, AStoredArchitectureOpensAsItIs) {
  const Compatibility found = judge({"1", {"sm_80", "sm_90a"}, {}, ""}, {kHopper, kCpu});
  EXPECT_EQ(found.kind, Kind::kAsStored);
  EXPECT_THAT(found.reason, IsEmpty());
}

TEST(CompatibilityTest, AnotherGpuCompilesAgain) {
  const Compatibility found = judge({"1", {"sm_100a"}, {}, ""}, {kHopper});
  EXPECT_EQ(found.kind, Kind::kCompiledAgain);
  EXPECT_THAT(found.reason, HasSubstr("compiled for sm_100a, this GPU is sm_90a"));
}

// Whoever calls nothing need not care.
TEST(CompatibilityTest, CallsOfCudnnNeedIt) {
  OfferedDevice without = kHopper;
  without.no_cudnn = "it calls cuDNN, and that is absent";
  ContextOrigin origin{"1", {"sm_90a"}, {}, ""};
  EXPECT_EQ(judge(origin, {without}).kind, Kind::kAsStored);
  origin.cudnn = "9.19.0";
  EXPECT_EQ(judge(origin, {without}).kind, Kind::kNot);
  EXPECT_EQ(judge(origin, {without}).reason, without.no_cudnn);
  EXPECT_EQ(judge(origin, {kHopper}).kind, Kind::kAsStored);
  EXPECT_EQ(judge(origin, {without, kHopper}).kind, Kind::kAsStored);
  EXPECT_EQ(parse_context_origin(origin.text()).cudnn, "9.19.0");
}

TEST(CompatibilityTest, WithoutAGpuThereIsNoWay) {
  const Compatibility found = judge({"1", {"sm_90a"}, {}, ""}, {kCpu});
  EXPECT_EQ(found.kind, Kind::kNot);
  EXPECT_THAT(found.reason, HasSubstr("a GPU that is not in this machine"));
  EXPECT_EQ(judge({"1", {"sm_90a"}, {}, ""}, {}).kind, Kind::kNot);
}

TEST(CompatibilityTest, AContextForTheCpuIsNotAGpus) {
  EXPECT_THAT(judge({"1", {"x86_64"}, {}, ""}, {kHopper}).reason, HasSubstr("target_arch=sm_90a"));
}

TEST(CompatibilityTest, CpusAreToldApartByArchitectureAndFeatures) {
  EXPECT_EQ(judge({"1", {"x86_64"}, {"avx2"}, ""}, {kCpu}).kind, Kind::kAsStored);
  EXPECT_EQ(judge({"1", {"aarch64"}, {}, ""}, {kCpu}).kind, Kind::kNot);
  const Compatibility found = judge({"1", {"x86_64"}, {"avx2", "avx512f"}, ""}, {kCpu});
  EXPECT_EQ(found.kind, Kind::kCompiledAgain);
  EXPECT_THAT(found.reason, HasSubstr("avx512f"));
}

}  // namespace
}  // namespace tenon::provider
