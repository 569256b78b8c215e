#include "base/thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace {
// Of this thread: the allocation that fails; 0: none.
thread_local int failing_allocation = 0;
}  // namespace

void* operator new(size_t bytes) {
  if (failing_allocation > 0 && --failing_allocation == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

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

// Threads that were started are joined, and the caller does what is left.
TEST(ThreadPoolConcurrent, GoesOnWhereMemoryForAThreadIsShort) {
  constexpr int kPlaces = 40;  // more than eight threads take
  for (int place = 1; place <= kPlaces; ++place) {
    std::vector<std::atomic<int>> calls(100);
    const std::function<void(int64_t)> work = [&](int64_t i) { ++calls[static_cast<size_t>(i)]; };
    failing_allocation = place;
    EXPECT_NO_THROW(parallel_for_each(100, work, 8)) << place;
    failing_allocation = 0;
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1) << place;
  }
}

TEST(ThreadPoolConcurrent, NothingToDoIsFine) {
  parallel_for_each(0, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace tenon
