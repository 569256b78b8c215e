// What every engine between host processes does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "distributed/element_ops.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/host_engines.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;

const auto kWell =
    AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));

struct Case {
  HostEngine engine;
  int ranks;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.engine.name << one.ranks; }

class HostEngineTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const Support there = GetParam().engine.support(); !there) GTEST_SKIP() << there.reason;
  }
  std::vector<Ended> run(const std::function<void(Communicator&)>& body) const {
    return run_engine(GetParam().engine, GetParam().ranks, std::chrono::seconds(60), body);
  }
};
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const HostEngine& engine : {kGloo, kSharedMemory}) {
    for (const int ranks : {1, 2, 3, 4}) cases.push_back({engine, ranks});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Engines, HostEngineTest, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST_P(HostEngineTest, SaysWhatItIs) {
  const std::string name = GetParam().engine.name;
  const auto ended = run([&](Communicator& ranks) { EXPECT_EQ(ranks.engine(), name); });
  EXPECT_THAT(ended, Each(kWell));
}

TEST_P(HostEngineTest, EveryCollectiveOnEveryType) {
  const auto ended = run([](Communicator& ranks) {
    for (const DType dtype : kMovedTypes) {
      for (const int64_t count : {1, 7, 259}) check_collectives(ranks, dtype, count, count);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

// Sums in the order of ranks, rounded once, whether ranks reduce all of it or a part each.
TEST_P(HostEngineTest, SumsHaveTheBitsOfLoopbackAtEverySize) {
  const auto ended = run([](Communicator& ranks) {
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

// More than a message, a step or a rank's room in one holds.
TEST_P(HostEngineTest, EveryCollectiveOfManyBytes) {
  const auto ended = run([](Communicator& ranks) {
    for (const DType dtype : {DType::kI8, DType::kF32}) {
      check_collectives(ranks, dtype, 70'004, 3);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

TEST_P(HostEngineTest, SplitsIntoGroupsThatWorkBesideTheWhole) {
  const auto ended = run([](Communicator& ranks) {
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
        std::vector<std::vector<int>> single;
        for (int rank = 0; rank < some->size(); ++rank) single.push_back({rank});
        check_collectives(*some->split(single), DType::kBF16, 5, 6);
      }
      check_collectives(ranks, DType::kI32, 12, 7);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

TEST_P(HostEngineTest, WhoLeavesAfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 10; ++round) {
    const auto ended = run([](Communicator& ranks) {
      std::vector<float> in(300'000, 1), out(in.size());
      ranks.all_reduce(in.data(), out.data(), 300'000, DType::kF32, Reduction::kSum, nullptr);
      EXPECT_EQ(out.back(), static_cast<float>(ranks.size()));
    });
    EXPECT_THAT(ended, Each(kWell));
  }
}

// No expectation: for whoever wants to know.
TEST_P(HostEngineTest, TellsItsLatency) {
  const auto ended = run([](Communicator& ranks) {
    for (const int64_t bytes : {3'584, 229'376, 4'000'000}) {
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
      std::printf("all_reduce of %ld bytes between %d processes: median %.1f us, best %.1f us\n",
                  static_cast<long>(bytes), ranks.size(), times[times.size() / 2], times[0]);
    }
  });
  EXPECT_THAT(ended, Each(kWell));
}

}  // namespace
}  // namespace tenon::distributed
