// Wrong arguments, on every call that takes them.
#include "distributed/call_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "distributed/loopback.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Rank 1 of 3, whose peers never come: what is refused is refused before anybody is waited for.
class CallChecksTest : public ::testing::Test {
 protected:
  using Counts = std::vector<int64_t>;
  using Pairs = std::vector<std::pair<int, int>>;
  using Groups = std::vector<std::vector<int>>;

  std::string refused(const std::function<void(Communicator&)>& call) {
    try {
      call(*ranks_[1]);
    } catch (const UserError& error) {
      EXPECT_EQ(ranks_[1]->progress().first_unfinished.number, 0) << "it was no call";
      EXPECT_EQ(ranks_[1]->progress().last_finished.number, 0) << "it was no call";
      return error.what();
    }
    return "it was not refused";
  }
  std::string reduce_refused(int64_t count, DType dtype, Reduction reduction) {
    return refused([&](Communicator& ranks) {
      ranks.all_reduce(memory_, memory_, count, dtype, reduction, nullptr);
    });
  }
  std::string gather_refused(const Counts& counts, DType dtype = DType::kF32) {
    return refused([&](Communicator& ranks) {
      ranks.all_gather(memory_, memory_ + 512, counts, dtype, nullptr);
    });
  }
  std::string scatter_refused(const Counts& counts) {
    return refused([&](Communicator& ranks) {
      ranks.reduce_scatter(memory_, memory_ + 512, counts, DType::kF32, Reduction::kSum, nullptr);
    });
  }
  std::string permute_refused(const Pairs& pairs) {
    return refused([&](Communicator& ranks) {
      ranks.permute(memory_, memory_ + 512, 4, DType::kF32, pairs, nullptr);
    });
  }
  std::string split_refused(const Groups& groups) {
    return refused([&](Communicator& ranks) { ranks.split(groups); });
  }

  const Communicators ranks_ = make_loopback(3, {std::chrono::milliseconds(1)});
  char memory_[1024] = {};
};

TEST_F(CallChecksTest, NegativeCounts) {
  EXPECT_EQ(reduce_refused(-1, DType::kF32, Reduction::kSum),
            "all_reduce on rank 1 of 3: the count is -1, it may not be negative");
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.broadcast(memory_, memory_, -2, DType::kF32, 0, nullptr);
              }),
              AllOf(StartsWith("broadcast on rank 1"), HasSubstr("-2")));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_to_all(memory_, memory_, -2, DType::kF32, nullptr);
              }),
              AllOf(StartsWith("all_to_all on rank 1"), HasSubstr("-2")));
  EXPECT_THAT(
      refused([&](Communicator& ranks) { ranks.send(memory_, -2, DType::kF32, 0, nullptr); }),
      AllOf(StartsWith("send on rank 1"), HasSubstr("-2")));
  EXPECT_THAT(
      refused([&](Communicator& ranks) { ranks.receive(memory_, -2, DType::kF32, 0, nullptr); }),
      AllOf(StartsWith("receive on rank 1"), HasSubstr("-2")));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.permute(memory_, memory_, -2, DType::kF32, Pairs(), nullptr);
              }),
              AllOf(StartsWith("permute on rank 1"), HasSubstr("-2")));
  EXPECT_EQ(gather_refused({1, 2, -3}),
            "all_gather on rank 1 of 3: the count of rank 2 is -3, it may not be negative");
  EXPECT_THAT(scatter_refused({1, -2, 3}), HasSubstr("the count of rank 1 is -2"));
}

TEST_F(CallChecksTest, OneCountForEachRank) {
  EXPECT_EQ(gather_refused({1, 2}),
            "all_gather on rank 1 of 3: 2 counts were given, one for each of 3 ranks is needed");
  EXPECT_THAT(scatter_refused({1, 2, 3, 4}), HasSubstr("4 counts were given"));
  EXPECT_THAT(scatter_refused({}), HasSubstr("0 counts were given"));
}

TEST_F(CallChecksTest, CountsThatOverflow) {
  constexpr int64_t kLarge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(gather_refused({kLarge, kLarge, 0}), HasSubstr("overflows"));
  EXPECT_THAT(reduce_refused(kLarge / 8, DType::kF32, Reduction::kSum), HasSubstr("overflows"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_to_all(memory_, memory_, kLarge / 2, DType::kU8, nullptr);
              }),
              HasSubstr("overflows"));
}

TEST_F(CallChecksTest, TypesThatCannotBeReducedOrMoved) {
  EXPECT_THAT(reduce_refused(4, DType::kU4, Reduction::kSum),
              HasSubstr("no sum of u4: elements of less than a byte are moved only"));
  EXPECT_THAT(reduce_refused(4, DType::kF4E2M1, Reduction::kMax), HasSubstr("f4e2m1"));
  EXPECT_THAT(reduce_refused(4, DType::kF8E8M0, Reduction::kSum), HasSubstr("f8e8m0"));
  EXPECT_THAT(reduce_refused(4, DType::kI32, Reduction::kAverage), HasSubstr("average of i32"));
  EXPECT_THAT(reduce_refused(4, DType::kString, Reduction::kSum), HasSubstr("string"));
  EXPECT_THAT(gather_refused({2, 3, 4}, DType::kF4E2M1),
              HasSubstr("the count of rank 1: 3 elements of f4e2m1 do not fill whole bytes"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.broadcast(memory_, memory_, 3, DType::kU4, 0, nullptr);
              }),
              HasSubstr("3 elements of u4"));
}

TEST_F(CallChecksTest, RootsAndPeersOutOfRange) {
  for (const int root : {-1, 3}) {
    EXPECT_THAT(refused([&](Communicator& ranks) {
                  ranks.broadcast(memory_, memory_, 4, DType::kF32, root, nullptr);
                }),
                HasSubstr("the root is rank " + std::to_string(root) + ", but ranks are 0 to 2"));
  }
  EXPECT_THAT(
      refused([&](Communicator& ranks) { ranks.send(memory_, 4, DType::kF32, 3, nullptr); }),
      HasSubstr("the peer is rank 3"));
  EXPECT_THAT(
      refused([&](Communicator& ranks) { ranks.receive(memory_, 4, DType::kF32, -1, nullptr); }),
      HasSubstr("the peer is rank -1"));
  EXPECT_THAT(
      refused([&](Communicator& ranks) { ranks.send(memory_, 4, DType::kF32, 1, nullptr); }),
      HasSubstr("the peer is the rank itself"));
}

TEST_F(CallChecksTest, PairsThatAreNone) {
  EXPECT_THAT(permute_refused({{0, 1}, {0, 2}}), HasSubstr("rank 0 is the source of two pairs"));
  EXPECT_THAT(permute_refused({{0, 2}, {1, 2}}), HasSubstr("rank 2 is the target of two pairs"));
  EXPECT_THAT(permute_refused({{3, 2}}), HasSubstr("the source of a pair is rank 3"));
  EXPECT_THAT(permute_refused({{0, -1}}), HasSubstr("the target of a pair is rank -1"));
}

TEST_F(CallChecksTest, GroupsThatOverlapOrAreNone) {
  EXPECT_THAT(split_refused({{0, 1}, {1, 2}}), HasSubstr("rank 1 is in groups 0 and 1"));
  EXPECT_THAT(split_refused({{0}, {2, 2}}), HasSubstr("rank 2 is in group 1 twice"));
  EXPECT_THAT(split_refused({{0}, {}}), HasSubstr("group 1 is empty"));
  EXPECT_THAT(split_refused({{0, 3}}), HasSubstr("the member of group 0 is rank 3"));
}

TEST_F(CallChecksTest, MemoryThatIsNone) {
  EXPECT_EQ(refused([&](Communicator& ranks) {
              ranks.all_reduce(nullptr, memory_, 4, DType::kF32, Reduction::kSum, nullptr);
            }),
            "all_reduce on rank 1 of 3: 'in' is null, 4 elements are needed there");
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_gather(memory_, nullptr, Counts{1, 0, 0}, DType::kF32, nullptr);
              }),
              HasSubstr("'out' is null"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.broadcast(nullptr, memory_, 4, DType::kF32, 1, nullptr);
              }),
              HasSubstr("'in' is null"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.permute(nullptr, memory_, 4, DType::kF32, Pairs{{1, 0}}, nullptr);
              }),
              HasSubstr("'in' is null"));
}

TEST_F(CallChecksTest, MemoryThatOverlapsInPart) {
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_reduce(memory_, memory_ + 4, 4, DType::kF32, Reduction::kSum, nullptr);
              }),
              HasSubstr("'in' and 'out' overlap"));
  // Rank 1's own part begins after the one of rank 0.
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_gather(memory_, memory_, Counts{2, 2, 2}, DType::kF32, nullptr);
              }),
              HasSubstr("but not where the one is the rank's part of the other"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.reduce_scatter(memory_, memory_, Counts{2, 2, 2}, DType::kF32,
                                     Reduction::kSum, nullptr);
              }),
              HasSubstr("overlap"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.all_to_all(memory_, memory_, 2, DType::kF32, nullptr);
              }),
              HasSubstr("'in' and 'out' overlap"));
  EXPECT_THAT(refused([&](Communicator& ranks) {
                ranks.permute(memory_, memory_, 2, DType::kF32, Pairs{{1, 1}}, nullptr);
              }),
              HasSubstr("'in' and 'out' overlap"));
}

TEST(CallTextTest, DetailsThatRanksMustAgreeIn) {
  EXPECT_EQ(counts_text(std::vector<int64_t>{3, 0, 5}), "counts 3, 0, 5");
  EXPECT_EQ(counts_text(std::vector<int64_t>{3, 3, 3}), "");
  EXPECT_EQ(pairs_text(std::vector<std::pair<int, int>>{{0, 1}, {1, 0}}), "0 to 1, 1 to 0");
  EXPECT_EQ(pairs_text({}), "no pairs");
  EXPECT_EQ(groups_text(std::vector<std::vector<int>>{{0, 1}, {2}}), "groups 0 1 | 2");
  EXPECT_EQ(groups_text({}), "no groups");
}

}  // namespace
}  // namespace tenon::distributed
