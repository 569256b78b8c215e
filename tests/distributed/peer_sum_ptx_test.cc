// The kernel of sums in peer memory, put through the assembler.
#include <gtest/gtest.h>

#include "distributed/peer_sum_kernel.h"
#include "tests/codegen/assembler.h"

namespace tenon::distributed {
namespace {

using codegen::has;

TEST(PeerSumPtxTest, EveryKernelAssembles) {
  if (codegen::assembler().empty()) {
    GTEST_SKIP() << "no assembler: scripts/setup.sh fetches nvidia-cuda-nvcc into .deps";
  }
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const auto& [rank, ranks] : {std::pair(0, 2), std::pair(1, 3), std::pair(7, 8)}) {
      for (const auto& [major, arch] :
           {std::pair(8, "sm_80"), std::pair(9, "sm_90a"), std::pair(10, "sm_100a")}) {
        const PeerSumKernel kernel{dtype, rank, ranks, major, major >= 9};
        const auto assembled = codegen::assemble(kernel.code(), arch);
        ASSERT_EQ(assembled.status, 0) << arch << "\n" << assembled.report;
        EXPECT_TRUE(has(assembled.report, "[^0-9]0 bytes spill stores")) << assembled.report;
      }
    }
  }
}

// Ranks that share a GPU could keep each other from running.
TEST(PeerSumPtxTest, TheNextLaunchBeginsEarlyOnlyWhereAsked) {
  for (const bool asked : {false, true}) {
    const std::string ptx = PeerSumKernel{DType::kF16, 0, 2, 9, asked}.code().ptx;
    EXPECT_EQ(has(ptx, "griddepcontrol.launch_dependents"), asked);
    EXPECT_TRUE(has(ptx, "griddepcontrol.wait"));
  }
  EXPECT_FALSE(has(PeerSumKernel{DType::kF16, 0, 2, 8, false}.code().ptx, "griddepcontrol"));
}

// 8 bytes travel for 4, in two places, for every rank and CTA.
TEST(PeerSumPtxTest, MemoryHoldsTwoExchangesOfAllRanks) {
  EXPECT_EQ(PeerSumKernel::memory_bytes(2, 64), size_t{64} * 2 * 2 * 2 * 4096);
  EXPECT_EQ(PeerSumKernel::memory_bytes(8, 1), size_t{2} * 8 * 2 * 4096);
}

}  // namespace
}  // namespace tenon::distributed
