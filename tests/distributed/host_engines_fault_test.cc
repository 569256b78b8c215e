// Processes that die, stop, leave or do something else: the others get an error in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/distributed/check_collectives.h"
#include "tests/distributed/host_engines.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr int kRounds = 10;
constexpr milliseconds kShort{500}, kLong{30'000};

void sum(Communicator& ranks, int64_t count = 4) {
  std::vector<float> in(count, 1), out(count);
  ranks.all_reduce(in.data(), out.data(), count, DType::kF32, Reduction::kSum, nullptr);
}

// Threw this, and long before a test would be given up: waits end with the deadline, whatever the
// machine is busy with besides.
auto threw(const std::string& part) {
  return AllOf(Field(&Ended::thrown, HasSubstr(part)),
               Field(&Ended::thrown, ::testing::Not(HasSubstr("not collective"))),
               Field(&Ended::failed, false), Field(&Ended::signal, 0),
               Field(&Ended::after, Lt(milliseconds(20'000))));
}

class HostEngineFaultTest : public ::testing::TestWithParam<HostEngine> {
 protected:
  void SetUp() override {
    if (const Support there = GetParam().support(); !there) GTEST_SKIP() << there.reason;
  }
  std::vector<Ended> run(int size, milliseconds deadline,
                         const std::function<void(Communicator&)>& body,
                         const std::function<void(const std::vector<int>&)>& meanwhile = {}) const {
    return run_engine(GetParam(), size, deadline, body, meanwhile);
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, HostEngineFaultTest, ::testing::Values(kGloo, kSharedMemory),
                         ::testing::PrintToStringParamName());

TEST_P(HostEngineFaultTest, ARankThatIsKilledEndsTheWaitForIt) {
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(3, kLong, [](Communicator& ranks) {
      ranks.barrier(nullptr);
      if (ranks.rank() == 2) raise(SIGKILL);
      sum(ranks);
    });
    EXPECT_THAT(ended[0], threw("all_reduce #2 of f32[4] (sum): rank 2 is gone"));
    EXPECT_THAT(ended[1], threw("all_reduce #2 of f32[4] (sum): rank 2 is gone"));
    EXPECT_EQ(ended[2].signal, SIGKILL);
  }
}

TEST_P(HostEngineFaultTest, ARankThatIsKilledInTheMiddleOfAMessageEndsTheWaitForIt) {
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(
        3, kShort,
        [](Communicator& ranks) {
          for (;;) sum(ranks, 1'000'000);
        },
        [&](const std::vector<int>& processes) {
          std::this_thread::sleep_for(milliseconds(150 + 7 * round));
          kill(processes[2], SIGKILL);
        });
    // It may have been killed before all were connected.
    EXPECT_THAT(ended[0], threw("rank 2"));
    EXPECT_THAT(ended[1], threw("rank 2"));
  }
}

TEST_P(HostEngineFaultTest, ARankThatIsStoppedIsLate) {
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(3, kShort, [](Communicator& ranks) {
      ranks.barrier(nullptr);
      if (ranks.rank() == 2) raise(SIGSTOP);
      sum(ranks);
    });
    EXPECT_THAT(ended[0], threw("all_reduce #2 of f32[4] (sum): rank 2 did not arrive within"));
    EXPECT_THAT(ended[1], threw("all_reduce #2 of f32[4] (sum): rank 2 did not arrive within"));
  }
}

TEST_P(HostEngineFaultTest, ARankThatLeavesEndsTheWaitForIt) {
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(3, kLong, [](Communicator& ranks) {
      ranks.barrier(nullptr);
      if (ranks.rank() != 0) sum(ranks);
    });
    EXPECT_EQ(ended[0].thrown, "");
    EXPECT_THAT(ended[1], threw("all_reduce #2 of f32[4] (sum): rank 0 is gone"));
    EXPECT_THAT(ended[2], threw("all_reduce #2 of f32[4] (sum): rank 0 is gone"));
  }
}

TEST_P(HostEngineFaultTest, RanksThatCallSomethingElseAreToldApart) {
  const auto other_size = [](Communicator& ranks) { sum(ranks, 4000); };
  const auto other_order = [](Communicator& ranks) { ranks.barrier(nullptr); };
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(3, kShort, [&](Communicator& ranks) {
      if (ranks.rank() != 1) return sum(ranks);
      round % 2 == 0 ? other_size(ranks) : other_order(ranks);
    });
    const std::string other =
        round % 2 == 0 ? "all_reduce #1 of f32[4000] (sum): " : "barrier #1: ";
    EXPECT_THAT(ended[0], threw("all_reduce #1 of f32[4] (sum): "));
    EXPECT_THAT(ended[1], threw(other));
    EXPECT_THAT(ended[2], threw("all_reduce #1 of f32[4] (sum): "));
    // Who is late is told what the others are in.
    EXPECT_THAT(ended[0].thrown + ended[2].thrown, HasSubstr(other));
  }
}

TEST_P(HostEngineFaultTest, ReceiversOfAnotherSizeGetNothing) {
  const auto ended = run(2, kShort, [](Communicator& ranks) {
    std::vector<float> memory(1000);
    if (ranks.rank() == 0) ranks.send(memory.data(), 1000, DType::kF32, 1, nullptr);
    if (ranks.rank() == 1) ranks.receive(memory.data(), 999, DType::kF32, 0, nullptr);
  });
  EXPECT_THAT(ended[0], threw("send #1 of f32[1000] (to 1): rank 1 "));
  EXPECT_THAT(ended[1], threw("receive #1 of f32[999] (from 0): rank 0 "));
}

TEST_P(HostEngineFaultTest, ARankThatNeverComesIsNamed) {
  const TemporaryFolder folder;
  const auto ended = run_processes(3, [&](int rank) {
    if (rank != 1) (void)GetParam().make(rank, 3, file_store(folder.path(), rank), kShort, "ranks");
  });
  EXPECT_THAT(ended[0], threw("connecting 3 ranks: rank 1 did not arrive within 500 ms"));
  EXPECT_THAT(ended[2], threw("connecting 3 ranks: rank 1 did not arrive within 500 ms"));
}

TEST_P(HostEngineFaultTest, ARankThatDiesWhileItConnectsIsNamed) {
  for (int round = 0; round < 3; ++round) {
    const TemporaryFolder folder;
    const auto ended = run_processes(3, [&](int rank) {
      KeyValues store = file_store(folder.path(), rank);
      if (rank == 1) store.get = [](auto&&...) -> std::string { _exit(0); };
      // Who was connected before it died learns of it from the first call.
      GetParam().make(rank, 3, store, milliseconds(2'000), "ranks")->barrier(nullptr);
    });
    for (const int rank : {0, 2}) {
      EXPECT_THAT(ended[rank], threw(": rank 1 "));
      // Gloo's own wait for a connection is five times as long as asked for.
      EXPECT_LT(ended[rank].after, milliseconds(9'000));
    }
  }
}

TEST_P(HostEngineFaultTest, AbortEndsTheWaitsOfAll) {
  const std::string wanted =
      "rank 1 was aborted, it is in all_reduce #1 of f32[4] (sum): the session is closed";
  for (int round = 0; round < kRounds; ++round) {
    const auto ended = run(3, kLong, [&](Communicator& ranks) {
      std::thread other;
      if (ranks.rank() == 1) {
        other = std::thread([&] {
          while (ranks.progress().first_unfinished.number == 0) std::this_thread::yield();
          ranks.abort("the session is closed");
        });
      }
      const std::string thrown = thrown_by([&] {
        if (ranks.rank() == 2) std::this_thread::sleep_for(milliseconds(50));
        sum(ranks);
      });
      if (other.joinable()) other.join();
      EXPECT_EQ(thrown_by([&] { sum(ranks); }), thrown);
      throw CollectiveError(thrown);
    });
    EXPECT_EQ(ended[1].thrown, wanted);
    for (const Ended& one : ended) EXPECT_THAT(one, threw(wanted));
  }
}

TEST_P(HostEngineFaultTest, ANewCommunicatorWorksInTheSameProcesses) {
  const TemporaryFolder folder;
  const auto ended = run_processes(3, [&](int rank) {
    const KeyValues store = file_store(folder.path(), rank);
    for (const std::string name : {"first", "second", "third"}) {
      const auto ranks = GetParam().make(rank, 3, store, kShort, name);
      check_collectives(*ranks, DType::kF32, 9, 1);
      EXPECT_NE(thrown_by([&] { sum(*ranks, rank + 1); }), "");
      // All have noticed before the next one is made, whose deadline is as short.
      store.set(name + " failed", "");
      for (int other = 0; other < 3; ++other) {
        (void)store.get(other, name + " failed", milliseconds(20'000));
      }
    }
  });
  for (const Ended& one : ended) EXPECT_THAT(one, threw(""));
}

}  // namespace
}  // namespace tenon::distributed
