#include "distributed/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/distributed/nccl_ranks.h"
#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibraryTest, VersionsReadAsPeopleWriteThem) {
  EXPECT_EQ(nccl_version_text(22703), "2.27.3");
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23102), "2.31.2");
}

TEST(NcclLibraryTest, GatesOpenWithTheirVersion) {
  EXPECT_FALSE(has_all_to_all(22707));
  EXPECT_TRUE(has_all_to_all(22800));
  EXPECT_TRUE(has_all_to_all(23007));
  EXPECT_FALSE(has_graph_usage_mode(22809));
  EXPECT_TRUE(has_graph_usage_mode(22902));
}

TEST(NcclLibraryTest, ChannelsAreThoseAskedForElseMoreOnBlackwell) {
  EXPECT_EQ(nccl_max_ctas(22809, 9, 0), std::nullopt);
  EXPECT_EQ(nccl_max_ctas(22707, 10, 0), std::nullopt);
  EXPECT_EQ(nccl_max_ctas(22800, 10, 0), 32);
  EXPECT_EQ(nccl_max_ctas(22800, 12, 0), std::nullopt);
  EXPECT_EQ(nccl_max_ctas(22800, 10, 4), 4);
  EXPECT_EQ(nccl_max_ctas(22700, 8, 4), 4);
}

TEST(NcclLibraryTest, LoadsFromTheOldestVersionOn) {
  for (const int version : {22700, 22707, 22800, 22809, 22907, 23007}) {
    const StubNccl stub = stub_nccl(version);
    EXPECT_EQ(stub.functions.version, version);
    EXPECT_EQ(stub.functions.all_to_all != nullptr, version >= 22800);
    EXPECT_EQ(stub.functions.path, TENON_STUB_NCCL);
  }
}

TEST(NcclLibraryTest, WhatIsTooOldOrNoNcclIsAReason) {
  const StubNccl stub = stub_nccl();
  stub.set_version(22605);
  EXPECT_THAT(load_nccl(std::vector<std::string>{TENON_STUB_NCCL}).support.reason,
              HasSubstr("is NCCL 2.26.5, 2.27.0 or newer is needed"));
  stub.set_version(22809);
  EXPECT_THAT(load_nccl(std::vector<std::string>{"libtenon_no_nccl.so.2"}).support.reason,
              AllOf(HasSubstr("libtenon_no_nccl.so.2"), HasSubstr("TENON_NCCL_LIBRARY")));
  // Some library that is here on every machine.
  EXPECT_THAT(load_nccl(std::vector<std::string>{"libc.so.6"}).support.reason,
              HasSubstr("does not say its version"));
}

TEST(NcclLibraryTest, ReducesWhatItKnowsAndNothingElse) {
  const auto knows = [](DType dtype, Reduction reduction, bool fp8 = true) {
    return nccl_type(dtype, reduction, fp8).answer.ok;
  };
  for (const DType dtype :
       {DType::kI8, DType::kU8, DType::kI32, DType::kU32, DType::kI64, DType::kU64}) {
    EXPECT_TRUE(knows(dtype, Reduction::kSum) && knows(dtype, Reduction::kMin)) << name(dtype);
  }
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    EXPECT_TRUE(knows(dtype, Reduction::kSum, false) && knows(dtype, Reduction::kAverage, false));
    EXPECT_THAT(nccl_type(dtype, Reduction::kMax, true).answer.reason, HasSubstr("drop NaN"));
  }
  for (const DType dtype : {DType::kF8E4M3FN, DType::kF8E5M2}) {
    EXPECT_TRUE(knows(dtype, Reduction::kSum));
    EXPECT_THAT(nccl_type(dtype, Reduction::kSum, false).answer.reason, HasSubstr("sm_90"));
    EXPECT_THAT(nccl_type(dtype, Reduction::kAverage, true).answer.reason,
                HasSubstr("sums and products only"));
  }
  for (const DType dtype : {DType::kI16, DType::kU16, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    EXPECT_THAT(nccl_type(dtype, Reduction::kSum, true).answer.reason,
                HasSubstr("does not know the type"));
  }
  EXPECT_FALSE(knows(DType::kF8E8M0, Reduction::kSum));
  EXPECT_FALSE(knows(DType::kU4, Reduction::kMax));
  EXPECT_TRUE(knows(DType::kBool, Reduction::kMax));
}

}  // namespace
}  // namespace tenon::distributed
