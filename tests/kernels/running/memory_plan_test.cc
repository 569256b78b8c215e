#include "kernels/running/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace tenon::kernels {
namespace {

bool live_together(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

TEST(MemoryPlan, EmptyPlanNeedsNothing) { EXPECT_EQ(plan_memory({}).bytes, 0); }

TEST(MemoryPlan, BuffersThatFollowEachOtherShareBytes) {
  const std::vector<Lifetime> chain{{0, 1, 1000}, {2, 3, 1000}, {4, 5, 1000}};
  EXPECT_EQ(plan_memory(chain).bytes, 1024);
}

TEST(MemoryPlan, PingPongNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 20; ++i) chain.push_back({i, i + 1, 4096});
  EXPECT_EQ(plan_memory(chain).bytes, 2 * 4096);
}

TEST(MemoryPlan, TightestHoleIsTaken) {
  // Holes of 256 and 128 bytes are left between the three long-lived buffers.
  const std::vector<Lifetime> buffers{{0, 9, 1024}, {0, 1, 256}, {0, 9, 512},
                                      {0, 1, 128},  {0, 9, 320}, {5, 6, 128}};
  const MemoryPlan plan = plan_memory(buffers);
  EXPECT_EQ(plan.bytes, 1024 + 256 + 512 + 128 + 320);
}

TEST(MemoryPlan, RandomBuffersNeverOverlapWhileAlive) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<Lifetime> buffers(random() % 60 + 1);
    int64_t sum = 0;
    for (Lifetime& buffer : buffers) {
      buffer.first = static_cast<int>(random() % 40);
      buffer.last = buffer.first + static_cast<int>(random() % 8);
      buffer.bytes = random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % 10000);
      sum += rounded(buffer.bytes);
    }
    const MemoryPlan plan = plan_memory(buffers);
    ASSERT_LE(plan.bytes, sum) << "seed " << seed;
    for (size_t i = 0; i < buffers.size(); ++i) {
      ASSERT_EQ(plan.offsets[i] % 64, 0) << "seed " << seed;
      ASSERT_LE(plan.offsets[i] + rounded(buffers[i].bytes), plan.bytes) << "seed " << seed;
      for (size_t j = 0; j < i; ++j) {
        if (!live_together(buffers[i], buffers[j])) continue;
        const bool apart = plan.offsets[i] + buffers[i].bytes <= plan.offsets[j] ||
                           plan.offsets[j] + buffers[j].bytes <= plan.offsets[i];
        ASSERT_TRUE(apart || buffers[i].bytes == 0 || buffers[j].bytes == 0)
            << "seed " << seed << ": buffers " << i << " and " << j;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
