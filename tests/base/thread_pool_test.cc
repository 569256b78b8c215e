#include "base/thread_pool.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace tenon {
namespace {

TEST(ThreadPoolConcurrent, RunsEachIndexOnce) {
  std::vector<std::atomic<int>> calls(1000);
  parallel_for_each(
      1000, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; }, 4);
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
}

TEST(ThreadPoolConcurrent, RethrowsTheFirstFailureAndStops) {
  std::atomic<int> calls = 0;
  const auto fail_at_ten = [&](int64_t i) {
    ++calls;
    if (i == 10) throw std::runtime_error("ten");
  };
  EXPECT_THROW(parallel_for_each(1000000, fail_at_ten, 4), std::runtime_error);
  EXPECT_LT(calls, 1000000);
}

TEST(ThreadPoolConcurrent, NothingToDoIsFine) {
  parallel_for_each(0, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace tenon
