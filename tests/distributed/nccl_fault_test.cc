// Each of NCCL's functions fails once, in each of its ways: ranks get CollectiveErrors, nothing
// hangs, nothing of NCCL's stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "distributed/bounded_call.h"
#include "tests/distributed/nccl_ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr NcclSettings kShort{.common = {milliseconds(500)}};
constexpr NcclSettings kLong{.common = {milliseconds(120'000)}};

void sum(Communicator& ranks) {
  float value = 1;
  ranks.all_reduce(&value, &value, 1, DType::kF32, Reduction::kSum, nullptr);
  EXPECT_EQ(value, ranks.size());
}

// Every function of NCCL's that collectives need, on two ranks. 2.27 sends messages in all_to_all.
void call_everything(Communicator& ranks) {
  float in[4] = {1, 2, 3, 4}, out[4] = {};
  const std::vector<int64_t> even{1, 1}, uneven{1, 2};
  const std::vector<std::pair<int, int>> swap{{0, 1}, {1, 0}};
  sum(ranks);
  ranks.all_gather(in, out, even, DType::kF32, nullptr);
  ranks.all_gather(in, out, uneven, DType::kF32, nullptr);
  ranks.reduce_scatter(in, out, even, DType::kF32, Reduction::kSum, nullptr);
  ranks.reduce_scatter(in, out, uneven, DType::kF32, Reduction::kSum, nullptr);
  ranks.broadcast(in, out, 4, DType::kF32, 1, nullptr);
  ranks.all_to_all(in, out, 2, DType::kF32, nullptr);
  ranks.permute(in, out, 4, DType::kF32, swap, nullptr);
  ranks.barrier(nullptr);
  const std::vector<std::vector<int>> groups{{0}, {1}};
  sum(*ranks.split(groups));
}

struct Fault {
  const char* function;
  StubFault fault;
};

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  const char* kinds[] = {"", "Refuses", "FailsLater", "NeverEnds", "Blocks"};
  return std::string(info.param.function) + kinds[info.param.fault];
}

class NcclFaultConcurrentTest : public ::testing::TestWithParam<Fault> {};

std::vector<Fault> faults_of_collectives() {
  std::vector<Fault> faults;
  for (const char* function :
       {"ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclReduceScatter", "ncclReduce",
        "ncclSend", "ncclRecv", "ncclAlltoAll", "ncclGroupEnd", "ncclCommSplit"}) {
    for (const StubFault fault : {kStubRefuses, kStubFailsLater, kStubNeverEnds}) {
      faults.push_back({function, fault});
    }
  }
  faults.push_back({"ncclGroupStart", kStubRefuses});
  return faults;
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclFaultConcurrentTest,
                         ::testing::ValuesIn(faults_of_collectives()), fault_name);

TEST_P(NcclFaultConcurrentTest, IsACollectiveErrorInNcclsWords) {
  const auto [function, fault] = GetParam();
  const StubNccl stub = stub_nccl(22809);
  const std::string words =
      fault == kStubNeverEnds ? "NCCL was not done within 500 ms, it waits for other ranks"
      : fault == kStubRefuses
          ? std::string(
                "NCCL: unhandled system error (run with NCCL_DEBUG=INFO for details): the "
                "stub's ") +
                function + " was told to fail"
          : std::string("NCCL: remote process exited or there was a network error: the stub's ") +
                function + " failed later";
  {
    const NcclRanks made = make_ranks(stub, 2, fault == kStubNeverEnds ? kShort : kLong);
    ASSERT_THAT(made.thrown, Each(""));
    stub.fail(function, fault);
    const auto thrown = run_ranks(made.ranks, [&](Communicator& ranks) {
      try {
        call_everything(ranks);
      } catch (const CollectiveError&) {
        made.ranks[1 - ranks.rank()]->abort("the other rank failed");
        throw;
      }
    });
    EXPECT_EQ(stub.pending(), 0) << function << " was not called";
    EXPECT_THAT(thrown, Contains(AllOf(HasSubstr(words), HasSubstr("#"), HasSubstr(" of 2: "))));
    EXPECT_THAT(thrown, Each(Not(HasSubstr("not collective"))));
    for (size_t rank = 0; rank < 2; ++rank) {
      if (thrown[rank].empty()) continue;
      EXPECT_EQ(thrown_by([&] { made.ranks[rank]->barrier(nullptr); }), thrown[rank]);
    }
  }
  EXPECT_EQ(stub.live(), 0);
  // The same process goes on with new ones.
  const NcclRanks again = make_ranks(stub, 2, kLong);
  EXPECT_THAT(run_ranks(again.ranks, call_everything), Each(""));
}

class NcclMakingConcurrentTest : public ::testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(Calls, NcclMakingConcurrentTest,
                         ::testing::Values(Fault{"ncclCommInitRankConfig", kStubRefuses},
                                           Fault{"ncclCommInitRankConfig", kStubFailsLater},
                                           Fault{"ncclCommInitRankConfig", kStubNeverEnds},
                                           Fault{"ncclCommGetAsyncError", kStubRefuses},
                                           Fault{"ncclCommGetAsyncError", kStubFailsLater},
                                           Fault{"ncclCommGetAsyncError", kStubNeverEnds}),
                         fault_name);

TEST_P(NcclMakingConcurrentTest, FailsOnTheRankAndLeavesNothing) {
  const StubNccl stub = stub_nccl(22809);
  stub.fail(GetParam().function, GetParam().fault);
  {
    const NcclRanks made = make_ranks(stub, 2, kShort);
    EXPECT_EQ(stub.pending(), 0);
    EXPECT_THAT(made.thrown, Contains(AllOf(HasSubstr("a communicator of 2 ranks, as rank "),
                                            HasSubstr("NCCL"))));
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(made.ranks[rank] == nullptr, !made.thrown[rank].empty());
    }
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(NcclFaultConcurrentTest, NoIdIsAnErrorInNcclsWords) {
  const StubNccl stub = stub_nccl();
  stub.fail("ncclGetUniqueId", kStubRefuses);
  EXPECT_THAT(thrown_by([&] { make_nccl_id(stub.functions); }),
              AllOf(HasSubstr("NCCL makes no id: "), HasSubstr("was told to fail")));
}

TEST(NcclFaultConcurrentTest, ARankThatDoesNotComeEndsTheWaitAtTheDeadline) {
  const StubNccl stub = stub_nccl();
  {
    const NcclRanks made = make_ranks(stub, 3, kShort);
    const auto thrown = run_ranks(made.ranks, [](Communicator& ranks) {
      if (ranks.rank() != 1) sum(ranks);
    });
    EXPECT_EQ(thrown[0],
              "all_reduce #1 of f32[1] (sum) on rank 0 of 3: NCCL was not done within 500 ms, it "
              "waits for other ranks");
    EXPECT_THAT(thrown[2], HasSubstr("on rank 2 of 3: NCCL was not done"));
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(NcclFaultConcurrentTest, AMessageThatNobodyTakesEndsAtTheDeadline) {
  const StubNccl stub = stub_nccl();
  const NcclRanks made = make_ranks(stub, 2, kShort);
  const float value = 1;
  EXPECT_THAT(thrown_by([&] { made.ranks[0]->send(&value, 1, DType::kF32, 1, nullptr); }),
              HasSubstr("send #1 of f32[1] (to 1) on rank 0 of 2: NCCL was not done"));
}

TEST(NcclFaultConcurrentTest, AbortEndsAWaitFromAnotherThread) {
  const StubNccl stub = stub_nccl();
  for (int round = 0; round < 10; ++round) {
    const NcclRanks made = make_ranks(stub, 2, kLong);
    Communicator& waiting = *made.ranks[0];
    std::thread other([&] {
      while (waiting.progress().first_unfinished.number == 0) std::this_thread::yield();
      waiting.abort("the session is closed");
    });
    const std::string thrown = thrown_by([&] { sum(waiting); });
    other.join();
    EXPECT_EQ(thrown,
              "rank 0 was aborted, it is in all_reduce #1 of f32[1] (sum): the session is closed");
    EXPECT_EQ(thrown_by([&] { sum(waiting); }), thrown);
    EXPECT_EQ(stub.live(), 1);  // the other rank's
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(NcclFaultConcurrentTest, AbortFreesACallThatHangsInNccl) {
  const StubNccl stub = stub_nccl();
  const NcclRanks made = make_ranks(stub, 1, kShort);
  stub.fail("ncclAllReduce", kStubBlocks);
  std::string thrown;
  std::thread hanging([&] { thrown = thrown_by([&] { sum(*made.ranks[0]); }); });
  while (stub.pending() > 0) std::this_thread::yield();
  made.ranks[0]->abort("it hangs");
  EXPECT_EQ(stub.live(), 0);
  stub.release();
  hanging.join();
  EXPECT_THAT(thrown, HasSubstr("it hangs"));
}

// A communicator's end must not throw and must not hang, whatever NCCL does.
class NcclEndConcurrentTest : public ::testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(Calls, NcclEndConcurrentTest,
                         ::testing::Values(Fault{"ncclCommFinalize", kStubRefuses},
                                           Fault{"ncclCommFinalize", kStubFailsLater},
                                           Fault{"ncclCommFinalize", kStubNeverEnds},
                                           Fault{"ncclCommDestroy", kStubRefuses},
                                           Fault{"ncclCommDestroy", kStubBlocks},
                                           Fault{"ncclCommAbort", kStubRefuses},
                                           Fault{"ncclCommAbort", kStubBlocks}),
                         fault_name);

TEST_P(NcclEndConcurrentTest, IsBounded) {
  const StubNccl stub = stub_nccl();
  {
    const NcclRanks made = make_ranks(stub, 2, kShort);
    stub.fail(GetParam().function, GetParam().fault);
    // Abort is called where something fails.
    if (std::string(GetParam().function) == "ncclCommAbort") {
      EXPECT_NE(thrown_by([&] { sum(*made.ranks[0]); }), "");
    }
  }
  EXPECT_EQ(stub.pending(), 0);
  stub.release();
  while (stub.live() > 0) std::this_thread::yield();
}

TEST(BoundedCallTest, SaysWhetherTheCallCameBack) {
  EXPECT_TRUE(call_within(milliseconds(60'000), [] {}));
  EXPECT_TRUE(
      call_within(milliseconds(60'000), [] { throw std::runtime_error("not our matter"); }));
  auto released = std::make_shared<std::atomic<bool>>(false);
  auto ended = std::make_shared<std::atomic<bool>>(false);
  EXPECT_FALSE(call_within(milliseconds(10), [released, ended] {
    while (!*released) std::this_thread::yield();
    *ended = true;
  }));
  *released = true;
  while (!*ended) std::this_thread::yield();
}

}  // namespace
}  // namespace tenon::distributed
