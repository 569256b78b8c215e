#include "distributed/loopback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "tests/distributed/check_collectives.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::Each;

// How many ranks there are.
class LoopbackConcurrentTest : public ::testing::TestWithParam<int> {
 protected:
  const Communicators ranks_ = make_loopback(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Ranks, LoopbackConcurrentTest, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(LoopbackConcurrentTest, EveryCollectiveOnEveryType) {
  const auto thrown = run_ranks(ranks_, [](Communicator& ranks) {
    for (const DType dtype : kMovedTypes) {
      for (const int64_t count : {1, 7, 259}) check_collectives(ranks, dtype, count, count);
    }
    check_collectives(ranks, DType::kF16, 3001, 1);
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST_P(LoopbackConcurrentTest, TheSameInGroups) {
  const int size = GetParam(), half = size / 2;
  const auto ranks_from = [](int begin, int end) {
    std::vector<int> ranks(end - begin);
    std::iota(ranks.begin(), ranks.end(), begin);
    return ranks;
  };
  // Two halves, the second backwards; one rank, the rest but the last; every rank for itself.
  std::vector<std::vector<int>> halves, uneven{{0}}, single;
  if (half > 0) halves.push_back(ranks_from(0, half));
  halves.push_back(ranks_from(half, size));
  std::ranges::reverse(halves.back());
  if (size > 2) uneven.push_back(ranks_from(1, size - 1));
  for (int rank = 0; rank < size; ++rank) single.push_back({rank});

  const auto thrown = run_ranks(ranks_, [&](Communicator& ranks) {
    for (const auto& groups : {halves, uneven, single}) {
      const std::unique_ptr<Communicator> group = ranks.split(groups);
      const bool is_in = std::ranges::any_of(
          groups, [&](const auto& g) { return std::ranges::count(g, ranks.rank()) > 0; });
      ASSERT_EQ(group != nullptr, is_in);
      if (group == nullptr) continue;
      const auto& mine = *std::ranges::find_if(
          groups, [&](const auto& g) { return std::ranges::count(g, ranks.rank()) > 0; });
      EXPECT_EQ(group->size(), static_cast<int>(mine.size()));
      EXPECT_EQ(mine[group->rank()], ranks.rank());
      for (const DType dtype : {DType::kF16, DType::kI32, DType::kU4, DType::kF8E4M3FN}) {
        check_collectives(*group, dtype, 13, 5);
      }
    }
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST_P(LoopbackConcurrentTest, AGroupOutlivesWhatItWasSplitFrom) {
  Communicators whole = make_loopback(GetParam()), groups(GetParam());
  std::vector<int> all(GetParam());
  std::iota(all.begin(), all.end(), 0);
  const auto splitting = run_ranks(whole, [&](Communicator& ranks) {
    groups[ranks.rank()] = ranks.split(std::vector<std::vector<int>>{all});
  });
  EXPECT_THAT(splitting, Each(""));
  whole.clear();
  EXPECT_THAT(run_ranks(groups, [](Communicator& g) { check_collectives(g, DType::kF32, 3, 1); }),
              Each(""));
}

TEST_P(LoopbackConcurrentTest, SumsAreInTheOrderOfRanks) {
  // Each partial sum rounds, so that another order would show.
  const auto thrown = run_ranks(ranks_, [](Communicator& ranks) {
    const float mine = ranks.rank() % 2 == 0 ? 1e8F : 1 + 7 * ranks.rank();
    float wanted = 0, got = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      wanted += rank % 2 == 0 ? 1e8F : 1 + 7 * rank;
    }
    ranks.all_reduce(&mine, &got, 1, DType::kF32, Reduction::kSum, nullptr);
    EXPECT_EQ(got, wanted);
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST_P(LoopbackConcurrentTest, EmptyCallsCountAndWaitForNobody) {
  Communicator& alone = *ranks_[0];
  const std::vector<int64_t> none(GetParam(), 0);
  const std::vector<std::pair<int, int>> pairs{{0, 0}};
  alone.all_reduce(nullptr, nullptr, 0, DType::kF32, Reduction::kSum, nullptr);
  EXPECT_EQ(alone.progress().last_finished.text(), "all_reduce #1 of f32[0] (sum)");
  alone.all_gather(nullptr, nullptr, none, DType::kF32, nullptr);
  alone.reduce_scatter(nullptr, nullptr, none, DType::kF32, Reduction::kMax, nullptr);
  alone.broadcast(nullptr, nullptr, 0, DType::kF32, 0, nullptr);
  alone.all_to_all(nullptr, nullptr, 0, DType::kF32, nullptr);
  alone.permute(nullptr, nullptr, 0, DType::kU4, pairs, nullptr);
  EXPECT_EQ(alone.progress().last_finished.text(), "permute #6 of u4[0] (0 to 0)");
  if (GetParam() == 1) return;
  alone.send(nullptr, 0, DType::kF32, 1, nullptr);
  alone.receive(nullptr, 0, DType::kF32, 1, nullptr);
  EXPECT_EQ(alone.progress().last_finished.text(), "receive #1 of f32[0] (from 1)");
  EXPECT_EQ(alone.progress().first_unfinished.number, 0);
}

TEST_P(LoopbackConcurrentTest, ABarrierLetsNobodyThroughBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  const auto thrown = run_ranks(ranks_, [&](Communicator& ranks) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      ranks.barrier(nullptr);
      EXPECT_GE(come, round * ranks.size());
      ranks.barrier(nullptr);
    }
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(LoopbackTest, SaysWhatItIs) {
  const Communicators ranks = make_loopback(3);
  ASSERT_EQ(ranks.size(), 3);
  EXPECT_EQ(ranks[2]->engine(), "loopback");
  EXPECT_EQ(ranks[2]->rank(), 2);
  EXPECT_EQ(ranks[2]->size(), 3);
  EXPECT_TRUE(ranks[2]->supports(DType::kF8E5M2FNUZ, Reduction::kProd));
}

}  // namespace
}  // namespace tenon::distributed
