// Ranks as threads that share memory of the stub driver's GPU.
#include "distributed/peer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/peer_sum.h"
#include "tests/distributed/rendezvous/ranks.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr milliseconds kDeadline{20'000};

std::vector<std::string> share_among(int ranks, size_t bytes) {
  return run_ranks(ranks, [&](Store& store) -> std::string {
    const auto answer = PeerMemory::share(store, device::Device::open(0), bytes, kDeadline);
    if (answer.memory == nullptr) return answer.reason;
    for (int rank = 0; rank < ranks; ++rank) {
      if (answer.memory->of(rank) == 0) return "not mapped";
    }
    const bool is_mine = answer.memory->rank() == store.rank();
    store.barrier("all have looked");
    return is_mine ? "shared" : "another rank's";
  });
}

TEST(PeerMemoryTest, EveryRankMapsThatOfAllOthers) {
  for (const int ranks : {1, 2, 4}) {
    const test::StubDriver stub;
    EXPECT_THAT(share_among(ranks, 100), Each("shared"));
    EXPECT_EQ(stub.calls("cuIpcOpenMemHandle_v2"), ranks * (ranks - 1));
    EXPECT_EQ(stub.leaks(), "");
  }
}

// One that cannot keeps all from it, with the same reason, and nothing stays mapped.
TEST(PeerMemoryTest, AllGiveUpTogether) {
  for (const std::string function :
       {"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuMemAlloc_v2", "cuMemsetD8Async"}) {
    const test::StubDriver stub("fail " + function + " 1 201");
    const auto told = share_among(3, 100);
    EXPECT_THAT(told, Each(told[0])) << function;
    EXPECT_THAT(told[0], HasSubstr("rank ")) << function;
    EXPECT_EQ(stub.leaks(), "") << function;
  }
}

TEST(PeerMemoryTest, MemoryThatRunsOutIsAReason) {
  const test::StubDriver stub("free_memory 1000");
  EXPECT_THAT(share_among(2, 100), Each(HasSubstr("rank 0: ")));
}

// The stub runs tile programs only: a kernel that it cannot load is a reason on all ranks.
TEST(PeerSumTest, AKernelThatDoesNotLoadLeavesSumsToNccl) {
  const test::StubDriver stub;
  const auto told = run_ranks(2, [](Store& store) -> std::string {
    const auto answer =
        PeerSum::connect(store, device::Device::open(0), /*shares_gpu=*/false, kDeadline);
    return answer.sum != nullptr ? "connected" : answer.reason;
  });
  EXPECT_THAT(told, Each(HasSubstr("rank 0: ")));
  EXPECT_EQ(stub.leaks(), "");
}

TEST(PeerSumTest, MoreRanksThanAKernelTakesAreLeftToNccl) {
  const auto told = run_ranks(PeerSum::kMostRanks + 1, [](Store& store) {
    return PeerSum::connect(store, nullptr, false, kDeadline).reason;
  });
  EXPECT_THAT(told, Each("9 ranks are more than 8"));
}

}  // namespace
}  // namespace tenon::distributed
