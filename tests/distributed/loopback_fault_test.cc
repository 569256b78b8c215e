// What ranks are told when one of them is late, does something else, or is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "distributed/loopback.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Communicator::Settings kShort{milliseconds(500)};
// Faults that are noticed at once: far from the deadline however slow the machine.
constexpr Communicator::Settings kLong{milliseconds(120'000)};

void sum(Communicator& ranks, int64_t count = 4) {
  std::vector<float> values(count, 1);
  ranks.all_reduce(values.data(), values.data(), count, DType::kF32, Reduction::kSum, nullptr);
}

TEST(LoopbackFaultConcurrentTest, NamesTheRanksThatDidNotArrive) {
  const Communicators ranks = make_loopback(4, kShort);
  const auto thrown = run_ranks(ranks, [](Communicator& rank) {
    if (rank.rank() % 2 == 0) sum(rank);
  });
  const std::string wanted =
      "all_reduce #1 of f32[4] (sum): ranks 1 and 3 did not arrive within 500 ms (rank 1 has "
      "called "
      "nothing; rank 3 has called nothing)";
  EXPECT_EQ(thrown[0], wanted);
  EXPECT_EQ(thrown[2], wanted);
  // Those who come too late learn it at once, and so do all later calls.
  EXPECT_EQ(thrown_by([&] { sum(*ranks[3]); }), wanted);
  EXPECT_EQ(thrown_by([&] { ranks[0]->barrier(nullptr); }), wanted);
  EXPECT_EQ(thrown_by([&] { sum(*ranks[0], 0); }), wanted);
}

TEST(LoopbackFaultConcurrentTest, SaysWhatTheMissingDidLast) {
  const Communicators ranks = make_loopback(3, kShort);
  const auto thrown = run_ranks(ranks, [](Communicator& rank) {
    rank.barrier(nullptr);
    if (rank.rank() == 1) sum(rank, 0);
    if (rank.rank() != 1) sum(rank);
  });
  EXPECT_EQ(thrown[0],
            "all_reduce #2 of f32[4] (sum): rank 1 did not arrive within 500 ms (rank 1 last "
            "finished all_reduce #2 of f32[0] (sum))");
}

TEST(LoopbackFaultConcurrentTest, ANewCommunicatorWorksAfterOneFailed) {
  for (int round = 0; round < 3; ++round) {
    const Communicators broken = make_loopback(2, {milliseconds(5)});
    EXPECT_NE(thrown_by([&] { sum(*broken[0]); }), "");
    EXPECT_THAT(run_ranks(make_loopback(2, kLong), [](Communicator& rank) { sum(rank); }),
                Each(""));
  }
}

// What ranks 0 and 1 call; what rank 2 calls instead; how messages name both.
struct Difference {
  const char* name;
  std::function<void(Communicator&)> call, other;
  std::string call_text, other_text;
};

class LoopbackDifferenceConcurrentTest : public ::testing::TestWithParam<Difference> {};

TEST_P(LoopbackDifferenceConcurrentTest, IsToldToAllRanksWithBothCalls) {
  for (int round = 0; round < 10; ++round) {
    const Communicators ranks = make_loopback(3, kLong);
    const auto thrown = run_ranks(ranks, [](Communicator& rank) {
      rank.rank() == 2 ? GetParam().other(rank) : GetParam().call(rank);
    });
    EXPECT_THAT(thrown, Each(AllOf(StartsWith("ranks do not call the same: "),
                                   HasSubstr(" calls " + GetParam().call_text),
                                   HasSubstr("rank 2 calls " + GetParam().other_text))));
    EXPECT_EQ(thrown[0], thrown[1]);
    EXPECT_EQ(thrown[0], thrown[2]);
  }
}

char* memory() {
  thread_local char memory[2048];
  return memory;
}

void reduce(Communicator& rank, int64_t count, DType dtype, Reduction reduction) {
  rank.all_reduce(memory(), memory(), count, dtype, reduction, nullptr);
}
void gather(Communicator& rank, const std::vector<int64_t>& counts) {
  rank.all_gather(memory(), memory() + 1024, counts, DType::kF32, nullptr);
}
void cast(Communicator& rank, int root) {
  rank.broadcast(memory(), memory(), 4, DType::kF32, root, nullptr);
}
void permute(Communicator& rank, int source) {
  const std::vector<std::pair<int, int>> pairs{{source, 0}};
  rank.permute(memory(), memory() + 1024, 4, DType::kF32, pairs, nullptr);
}
void split(Communicator& rank, const std::vector<std::vector<int>>& groups) { rank.split(groups); }

INSTANTIATE_TEST_SUITE_P(
    Calls, LoopbackDifferenceConcurrentTest,
    ::testing::Values(
        Difference{"AnotherCollective", [](Communicator& rank) { sum(rank); },
                   [](Communicator& rank) { cast(rank, 1); }, "all_reduce #1 of f32[4] (sum)",
                   "broadcast #1 of f32[4] (root 1)"},
        Difference{"AnotherSize", [](Communicator& rank) { sum(rank); },
                   [](Communicator& rank) { sum(rank, 5); }, "all_reduce #1 of f32[4] (sum)",
                   "all_reduce #1 of f32[5] (sum)"},
        Difference{"AnotherType",
                   [](Communicator& rank) { reduce(rank, 4, DType::kF16, Reduction::kMax); },
                   [](Communicator& rank) { reduce(rank, 4, DType::kBF16, Reduction::kMax); },
                   "all_reduce #1 of f16[4] (max)", "all_reduce #1 of bf16[4] (max)"},
        Difference{"AnotherReduction",
                   [](Communicator& rank) { reduce(rank, 4, DType::kI32, Reduction::kMax); },
                   [](Communicator& rank) { reduce(rank, 4, DType::kI32, Reduction::kMin); },
                   "all_reduce #1 of i32[4] (max)", "all_reduce #1 of i32[4] (min)"},
        Difference{"AnotherRoot", [](Communicator& rank) { cast(rank, 0); },
                   [](Communicator& rank) { cast(rank, 2); }, "broadcast #1 of f32[4] (root 0)",
                   "broadcast #1 of f32[4] (root 2)"},
        Difference{"OtherCounts",
                   [](Communicator& rank) {
                     gather(rank, {1, 2, 3});
                   },
                   [](Communicator& rank) {
                     gather(rank, {2, 2, 2});
                   },
                   "all_gather #1 of f32[6] (counts 1, 2, 3)", "all_gather #1 of f32[6]"},
        Difference{"OtherPairs", [](Communicator& rank) { permute(rank, 1); },
                   [](Communicator& rank) { permute(rank, 2); }, "permute #1 of f32[4] (1 to 0)",
                   "permute #1 of f32[4] (2 to 0)"},
        Difference{"OtherGroups",
                   [](Communicator& rank) {
                     split(rank, {{0, 1, 2}});
                   },
                   [](Communicator& rank) {
                     split(rank, {{0, 1}, {2}});
                   },
                   "split #1 (groups 0 1 2)", "split #1 (groups 0 1 | 2)"},
        Difference{"ALaterCall", [](Communicator& rank) { sum(rank); },
                   [](Communicator& rank) {
                     sum(rank, 0);
                     sum(rank);
                   },
                   "all_reduce #1 of f32[4] (sum)", "all_reduce #2 of f32[4] (sum)"}),
    [](const auto& info) { return info.param.name; });

TEST(LoopbackFaultConcurrentTest, MessagesOfAnotherSizeOrTypeAreTold) {
  for (const bool type : {false, true}) {
    const Communicators ranks = make_loopback(2, kLong);
    const auto thrown = run_ranks(ranks, [&](Communicator& rank) {
      if (rank.rank() == 0) rank.send(memory(), 4, DType::kF32, 1, nullptr);
      if (rank.rank() == 1) {
        rank.receive(memory(), type ? 4 : 5, type ? DType::kI32 : DType::kF32, 0, nullptr);
      }
    });
    EXPECT_THAT(thrown,
                Each(AllOf(HasSubstr("rank 0 calls send #1 of f32[4] (to 1)"),
                           HasSubstr(type ? "rank 1 calls receive #1 of i32[4] (from 0)"
                                          : "rank 1 calls receive #1 of f32[5] (from 0)"))));
  }
}

TEST(LoopbackFaultConcurrentTest, AMessageThatNobodyTakesOrSendsEndsAtTheDeadline) {
  const Communicators senders = make_loopback(3, kShort);
  EXPECT_EQ(thrown_by([&] { senders[0]->send(memory(), 4, DType::kF32, 2, nullptr); }),
            "send #1 of f32[4] (to 2): rank 2 did not arrive within 500 ms (rank 2 has called "
            "nothing)");
  const Communicators receivers = make_loopback(2, kShort);
  const auto thrown = run_ranks(receivers, [](Communicator& rank) {
    if (rank.rank() == 0) rank.receive(memory(), 4, DType::kF32, 1, nullptr);
    if (rank.rank() == 1) sum(rank);
  });
  EXPECT_EQ(thrown[0], thrown[1]);  // whoever noticed first
  EXPECT_THAT(thrown[0], HasSubstr("did not arrive within 500 ms"));
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("receive #1 of f32[4] (from 1)"),
                               HasSubstr("all_reduce #1 of f32[4] (sum)")));
}

TEST(LoopbackFaultConcurrentTest, AbortEndsTheWaitsOfAllRanks) {
  for (int round = 0; round < 10; ++round) {
    const Communicators ranks = make_loopback(3, kLong);
    std::thread other([&] {
      while (ranks[1]->progress().first_unfinished.number == 0) std::this_thread::yield();
      ranks[1]->abort("the session is closed");
    });
    const auto thrown = run_ranks(ranks, [](Communicator& rank) {
      if (rank.rank() != 2) sum(rank);
    });
    other.join();
    const std::string wanted =
        "rank 1 was aborted, it is in all_reduce #1 of f32[4] (sum): the session is closed";
    EXPECT_EQ(thrown[0], wanted);
    EXPECT_EQ(thrown[1], wanted);
    EXPECT_EQ(thrown_by([&] { sum(*ranks[1]); }), wanted);
    EXPECT_EQ(thrown_by([&] { sum(*ranks[2]); }), wanted);
  }
}

TEST(LoopbackFaultConcurrentTest, ARankThatIsDestroyedEndsTheWaitForIt) {
  for (int round = 0; round < 10; ++round) {
    Communicators ranks = make_loopback(3, kLong);
    EXPECT_THAT(run_ranks(ranks, [](Communicator& rank) { rank.barrier(nullptr); }), Each(""));
    std::unique_ptr<Communicator> leaving = std::move(ranks.back());
    ranks.pop_back();
    std::thread other([&] {
      while (round % 2 == 0 && ranks[0]->progress().first_unfinished.number == 0) {
        std::this_thread::yield();
      }
      leaving.reset();
    });
    const auto thrown = run_ranks(ranks, [](Communicator& rank) { sum(rank); });
    other.join();
    EXPECT_THAT(thrown, Each("all_reduce #2 of f32[4] (sum): rank 2 left: the communicator was "
                             "destroyed (rank 2 last finished barrier #1)"));
  }
}

TEST(LoopbackFaultConcurrentTest, WhoLeavesAfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 200; ++round) {
    Communicators ranks = make_loopback(3, kLong);
    const auto thrown = run_ranks(ranks, [&](Communicator& rank) {
      sum(rank);
      ranks[rank.rank()].reset();
    });
    EXPECT_THAT(thrown, Each(""));
  }
}

TEST(LoopbackFaultConcurrentTest, OneThreadAtATime) {
  const Communicators ranks = make_loopback(2, kLong);
  std::string second;
  std::thread other([&] {
    while (ranks[0]->progress().first_unfinished.number == 0) std::this_thread::yield();
    second = thrown_by([&] { ranks[0]->barrier(nullptr); });
    ranks[0]->abort("enough");
  });
  EXPECT_NE(thrown_by([&] { sum(*ranks[0]); }), "");
  other.join();
  EXPECT_EQ(second,
            "barrier on rank 0: another thread of it is in all_reduce #1 of f32[4] (sum); one at a "
            "time");
}

TEST(LoopbackTest, RefusesNumbersOfRanksAndDeadlinesThatAreNone) {
  EXPECT_THROW(make_loopback(0), UserError);
  EXPECT_THROW(make_loopback(-3), UserError);
  EXPECT_THROW(make_loopback(2, {milliseconds(0)}), UserError);
}

}  // namespace
}  // namespace tenon::distributed
