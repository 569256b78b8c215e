// Memory that NCCL registers: windows go before it does, whatever NCCL or a rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/distributed/nccl_ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr NcclSettings kShort{.common = {milliseconds(500)}};
constexpr NcclSettings kLong{.common = {milliseconds(120'000)}};
constexpr size_t kBytes = 8192;

// Pieces since it was made: a test before may have lost some on purpose.
class Pieces {
 public:
  explicit Pieces(const StubNccl& stub) : stub_(stub), before_(stub.memory()) {}
  int operator()() const { return stub_.memory() - before_; }

 private:
  const StubNccl& stub_;
  const int before_;
};

// On memory at these places, in bytes.
void sum(Communicator& ranks, EngineMemory& memory, size_t in_at, size_t out_at) {
  auto* bytes = static_cast<char*>(memory.data());
  auto* in = reinterpret_cast<float*>(bytes + in_at);
  auto* out = reinterpret_cast<float*>(bytes + out_at);
  *in = 1;
  ranks.all_reduce(in, out, 1, DType::kF32, Reduction::kSum, nullptr);
  EXPECT_EQ(*out, ranks.size());
}

TEST(NcclMemoryConcurrentTest, RanksSumOnRegisteredMemory) {
  for (const int version : {22703, 22809, 23203}) {
    const StubNccl stub = stub_nccl(version);
    const Pieces memory_left(stub);
    std::atomic<int> most = 0;
    {
      const NcclRanks made = make_ranks(stub, 3, kLong);
      const auto thrown = run_ranks(made.ranks, [&](Communicator& ranks) {
        const auto memory = ranks.allocate(kBytes);
        ASSERT_NE(memory, nullptr);
        EXPECT_TRUE(ranks.register_memory(*memory));
        ranks.barrier(nullptr);
        most = std::max(most.load(), stub.windows());
        sum(ranks, *memory, 0, 4096);
        sum(ranks, *memory, 4096, 4096);
        // Of a communicator that goes on: one is enough of a kind.
        const auto more = ranks.allocate(2 * kBytes);
        EXPECT_TRUE(ranks.register_memory(*more));
        sum(ranks, *more, kBytes, 0);
      });
      EXPECT_THAT(thrown, Each(""));
      EXPECT_EQ(stub.windows(), 0);
      EXPECT_EQ(memory_left(), 0);
    }
    EXPECT_EQ(most, 3);
    EXPECT_EQ(stub.live(), 0);
  }
}

// What the callers must see to: the stub refuses what NCCL would compute wrongly.
TEST(NcclMemoryConcurrentTest, PlacesThatDifferAreNoticedByTheStub) {
  const StubNccl stub = stub_nccl();
  const NcclRanks made = make_ranks(stub, 2, kLong);
  const auto thrown = run_ranks(made.ranks, [](Communicator& ranks) {
    const auto memory = ranks.allocate(kBytes);
    EXPECT_TRUE(ranks.register_memory(*memory));
    sum(ranks, *memory, ranks.rank() == 0 ? 0 : 64, 4096);
  });
  EXPECT_THAT(thrown, Each(HasSubstr("invalid argument or usage")));
}

TEST(NcclMemoryConcurrentTest, WithoutWindowsThereIsAReasonOnAllRanks) {
  const StubNccl stub = stub_nccl();
  const Pieces memory_left(stub);
  stub.set_windows(0);
  const NcclRanks made = make_ranks(stub, 2, kLong);
  const auto thrown = run_ranks(made.ranks, [](Communicator& ranks) {
    const auto memory = ranks.allocate(kBytes);
    EXPECT_THAT(ranks.register_memory(*memory).reason, HasSubstr("NCCL has no windows here"));
    sum(ranks, *memory, 0, 0);
  });
  EXPECT_THAT(thrown, Each(""));
  EXPECT_EQ(memory_left(), 0);
}

TEST(NcclMemoryConcurrentTest, NoMemoryIsAnErrorOfThisRankAlone) {
  const StubNccl stub = stub_nccl();
  const NcclRanks made = make_ranks(stub, 1, kLong);
  stub.fail("ncclMemAlloc", kStubRefuses);
  EXPECT_THAT(thrown_by([&] { made.ranks[0]->allocate(kBytes); }),
              AllOf(HasSubstr("NCCL has no 8192 bytes: "), HasSubstr("was told to fail")));
  // Nothing was asked of the others.
  EXPECT_NE(made.ranks[0]->allocate(kBytes), nullptr);
  made.ranks[0]->barrier(nullptr);
}

class NcclWindowConcurrentTest : public ::testing::TestWithParam<StubFault> {};
INSTANTIATE_TEST_SUITE_P(Faults, NcclWindowConcurrentTest,
                         ::testing::Values(kStubRefuses, kStubFailsLater, kStubNeverEnds));

TEST_P(NcclWindowConcurrentTest, ThatFailsEndsTheCommunicatorAndKeepsNothing) {
  const StubNccl stub = stub_nccl();
  const Pieces memory_left(stub);
  {
    const NcclRanks made = make_ranks(stub, 2, GetParam() == kStubNeverEnds ? kShort : kLong);
    stub.fail("ncclCommWindowRegister", GetParam());
    const auto thrown = run_ranks(made.ranks, [&](Communicator& ranks) {
      const auto memory = ranks.allocate(kBytes);
      try {
        ranks.register_memory(*memory);
      } catch (const CollectiveError&) {
        made.ranks[1 - ranks.rank()]->abort("the other rank failed");
        throw;
      }
    });
    EXPECT_EQ(stub.pending(), 0);
    EXPECT_THAT(thrown, Contains(HasSubstr("register_memory #1 on rank ")));
  }
  EXPECT_EQ(stub.windows() + memory_left() + stub.live(), 0);
}

TEST(NcclMemoryConcurrentTest, OutlivesACommunicatorThatWasAbortedOrClosed) {
  for (const bool aborts : {false, true}) {
    const StubNccl stub = stub_nccl();
    const Pieces memory_left(stub);
    std::vector<std::unique_ptr<EngineMemory>> memory(2);
    {
      const NcclRanks made = make_ranks(stub, 2, kLong);
      const auto thrown = run_ranks(made.ranks, [&](Communicator& ranks) {
        memory[ranks.rank()] = ranks.allocate(kBytes);
        EXPECT_TRUE(ranks.register_memory(*memory[ranks.rank()]));
        if (aborts) ranks.abort("a test");
      });
      EXPECT_THAT(thrown, Each(""));
      EXPECT_EQ(stub.windows(), aborts ? 0 : 2);
    }
    EXPECT_EQ(stub.windows(), 0);
    EXPECT_EQ(memory_left(), 2);
    memory.clear();
    EXPECT_EQ(memory_left(), 0);
  }
}

// Memory that NCCL holds on to is lost, and not torn from under it.
TEST(NcclMemoryConcurrentTest, StaysWhereItsWindowDoes) {
  const StubNccl stub = stub_nccl();
  const Pieces memory_left(stub);
  {
    const NcclRanks made = make_ranks(stub, 1, kLong);
    auto memory = made.ranks[0]->allocate(kBytes);
    EXPECT_TRUE(made.ranks[0]->register_memory(*memory));
    stub.fail("ncclCommWindowDeregister", kStubRefuses);
    memory.reset();
    EXPECT_EQ(stub.pending(), 0);
    EXPECT_EQ(stub.windows(), 1);
    EXPECT_EQ(memory_left(), 1);
  }
  const NcclRanks made = make_ranks(stub, 1, kShort);
  auto memory = made.ranks[0]->allocate(kBytes);
  EXPECT_TRUE(made.ranks[0]->register_memory(*memory));
  stub.fail("ncclCommAbort", kStubBlocks);
  made.ranks[0]->abort("it does not come back");
  memory.reset();
  EXPECT_EQ(memory_left(), 2);
  stub.release();
  while (stub.live() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace tenon::distributed
