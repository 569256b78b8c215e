#include "distributed/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/nccl_ranks.h"
#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// How many ranks, and which version.
class NcclConcurrentTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const int size_ = std::get<0>(GetParam());
  const StubNccl stub_ = stub_nccl(std::get<1>(GetParam()));
};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclConcurrentTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::Values(22703, 22809)));

TEST_P(NcclConcurrentTest, EveryCollectiveOnEveryType) {
  {
    const NcclRanks made = make_ranks(stub_, size_);
    ASSERT_THAT(made.thrown, Each(""));
    const auto thrown = run_ranks(made.ranks, [](Communicator& ranks) {
      for (const DType dtype : kMovedTypes) check_collectives(ranks, dtype, 37, 3);
    });
    EXPECT_THAT(thrown, Each(""));
  }
  EXPECT_EQ(stub_.live(), 0);
}

TEST_P(NcclConcurrentTest, TheSameInGroups) {
  {
    const NcclRanks made = make_ranks(stub_, size_);
    ASSERT_THAT(made.thrown, Each(""));
    // The odd ones, backwards, and the rest but the first.
    std::vector<std::vector<int>> groups(2);
    for (int rank = 1; rank < size_; ++rank) groups[rank % 2].push_back(rank);
    std::ranges::reverse(groups[1]);
    std::erase_if(groups, [](const auto& group) { return group.empty(); });
    const auto thrown = run_ranks(made.ranks, [&](Communicator& ranks) {
      const auto group = ranks.split(groups);
      ASSERT_EQ(group == nullptr, ranks.rank() == 0);
      if (group == nullptr) return;
      check_collectives(*group, DType::kF16, 13, 1);
      check_collectives(*group, DType::kU4, 13, 1);
    });
    EXPECT_THAT(thrown, Each(""));
  }
  EXPECT_EQ(stub_.live(), 0);
}

TEST(NcclTest, SaysWhatItIsAndWhatItRefuses) {
  const StubNccl stub = stub_nccl();
  const NcclRanks hopper = make_ranks(stub, 1), ampere = make_ranks(stub, 1, {}, 8);
  EXPECT_EQ(hopper.ranks[0]->engine(), "nccl 2.28.9");
  EXPECT_TRUE(hopper.ranks[0]->supports(DType::kF8E4M3FN, Reduction::kSum));
  EXPECT_FALSE(ampere.ranks[0]->supports(DType::kF8E4M3FN, Reduction::kSum));
  uint16_t value = 1;
  EXPECT_THAT(thrown_by([&] {
                hopper.ranks[0]->all_reduce(&value, &value, 1, DType::kU16, Reduction::kSum,
                                            nullptr);
              }),
              HasSubstr("NCCL has no sum of u16"));
  // It was no call, and the communicator is fine.
  hopper.ranks[0]->barrier(nullptr);
}

TEST(NcclTest, ChannelsGoIntoTheCommunicator) {
  const StubNccl stub = stub_nccl();
  make_ranks(stub, 1);
  EXPECT_EQ(stub.max_ctas(), NcclConfig::kDefault);
  make_ranks(stub, 1, {}, 10);
  EXPECT_EQ(stub.max_ctas(), 32);
  make_ranks(stub, 1, {.common = {}, .max_ctas = 5});
  EXPECT_EQ(stub.max_ctas(), 5);
}

TEST(NcclTest, GraphsThatDoNotMixAreToldOfFrom229On) {
  for (const int version : {22703, 22809, 22902, 23203}) {
    const StubNccl stub = stub_nccl(version);
    make_ranks(stub, 1);
    EXPECT_EQ(stub.graph_usage_mode(), NcclConfig::kDefault) << version;
    NcclSettings settings;
    settings.mixes_graphs = false;
    const NcclRanks made = make_ranks(stub, 1, settings);
    EXPECT_EQ(stub.graph_usage_mode(), version < 22900 ? NcclConfig::kDefault : 1) << version;
    made.ranks.at(0)->barrier(nullptr);
  }
}

TEST(NcclTest, TellsWhySumsAreNotInPeerMemory) {
  const StubNccl stub = stub_nccl();
  const auto ranks = make_nccl(stub.functions, make_nccl_id(stub.functions), 0, 1, host_device(),
                               {}, {nullptr, "rank 1: out of memory"});
  EXPECT_EQ(ranks->engine(), "nccl " + nccl_version_text(stub.functions.version) +
                                 " (no peer memory: rank 1: out of memory)");
  EXPECT_FALSE(ranks->launches_dependents(4096, DType::kF16, Reduction::kSum));
  EXPECT_FALSE(ranks->needs_order());
}

TEST(NcclTest, RefusesRanksThatAreNone) {
  const StubNccl stub = stub_nccl();
  const NcclId id = make_nccl_id(stub.functions);
  EXPECT_THROW(make_nccl(stub.functions, id, 2, 2, host_device()), UserError);
  EXPECT_THROW(make_nccl(stub.functions, id, 0, 0, host_device()), UserError);
  EXPECT_EQ(stub.live(), 0);
}

}  // namespace
}  // namespace tenon::distributed
