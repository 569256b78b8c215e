#include "distributed/gloo/gloo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "distributed/element_ops.h"
#include "distributed/gloo/address.h"
#include "distributed/gloo/load.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/processes.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

const auto kWell =
    AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));

// How many ranks there are.
class GlooTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Support there = gloo_support(); !there) GTEST_SKIP() << there.reason;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooTest, ::testing::Values(1, 2, 3, 4));

TEST_P(GlooTest, EveryCollectiveOnEveryType) {
  const auto ended = run_gloo(GetParam(), {}, [](Communicator& ranks) {
    for (const DType dtype : kMovedTypes) {
      for (const int64_t count : {1, 7, 259}) check_collectives(ranks, dtype, count, count);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

// Sums in the order of ranks, rounded once, whether ranks reduce all of it or a part each.
TEST_P(GlooTest, SumsHaveTheBitsOfLoopbackAtEverySize) {
  const auto ended = run_gloo(GetParam(), {}, [](Communicator& ranks) {
    for (const DType dtype : {DType::kF16, DType::kF32, DType::kI64}) {
      for (const int64_t count : {1000, 16384, 65537, 300001}) {
        std::vector<Bytes> in;
        std::vector<const void*> inputs;
        for (int rank = 0; rank < ranks.size(); ++rank) {
          in.push_back(random_elements(dtype, count, 10 + rank));
        }
        for (const Bytes& one : in) inputs.push_back(one.data());
        Bytes wanted(storage_bytes(dtype, count)), out(wanted.size());
        reduce_elements(dtype, Reduction::kSum, inputs, wanted.data(), count);
        ranks.all_reduce(in[ranks.rank()].data(), out.data(), count, dtype, Reduction::kSum,
                         nullptr);
        EXPECT_TRUE(out == wanted) << name(dtype) << " " << count;
        Bytes same = in[ranks.rank()];
        ranks.all_reduce(same.data(), same.data(), count, dtype, Reduction::kSum, nullptr);
        EXPECT_TRUE(same == wanted) << "in place, " << name(dtype) << " " << count;
      }
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

TEST_P(GlooTest, SplitsIntoGroupsThatWorkBesideTheWhole) {
  const auto ended = run_gloo(GetParam(), {}, [](Communicator& ranks) {
    // Backwards, so that ranks are renumbered; the last one is in no group.
    std::vector<int> most;
    for (int rank = ranks.size() - 2; rank >= 0; --rank) most.push_back(rank);
    std::vector<std::vector<int>> groups;
    if (!most.empty()) groups.push_back(most);
    for (int round = 0; round < 2; ++round) {
      const auto some = ranks.split(groups);
      ASSERT_EQ(some == nullptr, ranks.rank() == ranks.size() - 1);
      if (some != nullptr) {
        EXPECT_EQ(some->size(), ranks.size() - 1);
        EXPECT_EQ(some->rank(), ranks.size() - 2 - ranks.rank());
        check_collectives(*some, DType::kF32, 33, 5);
        const auto alone = some->split(std::vector<std::vector<int>>{{some->rank()}});
        if (some->size() == 1) check_collectives(*alone, DType::kBF16, 5, 6);
      }
      check_collectives(ranks, DType::kI32, 12, 7);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

TEST_P(GlooTest, WhoLeavesAfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 10; ++round) {
    const auto ended = run_gloo(GetParam(), {}, [](Communicator& ranks) {
      std::vector<float> in(300'000, 1), out(in.size());
      ranks.all_reduce(in.data(), out.data(), 300'000, DType::kF32, Reduction::kSum, nullptr);
      EXPECT_EQ(out.back(), static_cast<float>(ranks.size()));
    });
    EXPECT_THAT(ended, Each(kWell));
  }
}

// No expectation: for whoever wants to know.
TEST_P(GlooTest, TellsItsLatency) {
  const auto ended = run_gloo(GetParam(), {}, [](Communicator& ranks) {
    for (const int64_t bytes : {3'584, 234'496}) {
      std::vector<float> in(bytes / 4, 1), out(in.size());
      std::vector<double> times;
      for (int round = 0; round < 100; ++round) {
        ranks.barrier(nullptr);
        const auto begin = std::chrono::steady_clock::now();
        ranks.all_reduce(in.data(), out.data(), bytes / 4, DType::kF32, Reduction::kSum, nullptr);
        times.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                .count());
      }
      std::ranges::sort(times);
      if (ranks.rank() != 0) continue;
      std::printf("all_reduce of %ld bytes between %d processes: median %.0f us, best %.0f us\n",
                  static_cast<long>(bytes), ranks.size(), times[times.size() / 2], times[0]);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

TEST(GlooLibraryTest, AnAbsentLibraryIsAReasonThatSaysWhatToInstall) {
  const GlooLibrary absent = open_gloo_library("/nowhere/libtenon_gloo.so");
  EXPECT_EQ(absent.functions, nullptr);
  EXPECT_THAT(absent.why, AllOf(HasSubstr("/nowhere/libtenon_gloo.so"), HasSubstr("libgloo0")));
  const GlooLibrary other = open_gloo_library("libm.so.6");
  EXPECT_EQ(other.functions, nullptr);
  EXPECT_THAT(other.why, HasSubstr("libm.so.6 was built for another version of Tenon"));
}

class GlooArgumentsTest : public GlooTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooArgumentsTest, ::testing::Values(1));

TEST_P(GlooArgumentsTest, WrongOnesAreRefused) {
  const TemporaryFolder folder;
  const auto refusal = [&](int rank, int size, const GlooSettings& settings) {
    try {
      (void)make_gloo(rank, size, file_store(folder.path(), rank), settings);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(refusal(2, 2, {}), HasSubstr("rank 2 is none of 2 ranks"));
  EXPECT_THAT(refusal(-1, 2, {}), HasSubstr("rank -1 is none of 2 ranks"));
  EXPECT_THAT(refusal(0, -3, {}), HasSubstr("-3 ranks were asked for"));
  EXPECT_THAT(refusal(0, 1, {{std::chrono::milliseconds(0)}, "127.0.0.1"}),
              HasSubstr("must be positive"));
  EXPECT_THAT(refusal(0, 1, {{}, "no.such.host.invalid"}), HasSubstr("'no.such.host.invalid'"));
  EXPECT_THAT(refusal(0, 1, {{}, ""}), HasSubstr("no host that this one knows"));
  EXPECT_THAT(refusal(0, 1, {{}, "192.0.2.1"}),  // an address of documentation, nobody's
              AllOf(HasSubstr("'192.0.2.1'"), HasSubstr("give an address of this host")));
  EXPECT_EQ(refusal(0, 1, {{}, "localhost"}), "none");
}

TEST(GlooAddressTest, IsTheOneThatReachesTheOtherHost) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(own_address("127.0.0.1"), "127.0.0.1");
  EXPECT_THROW(address_towards("no.such.host.invalid"), UserError);
  EXPECT_THROW(own_address("192.0.2.1"), UserError);
}

}  // namespace
}  // namespace tenon::distributed
