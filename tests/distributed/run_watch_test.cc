#include "distributed/run_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;

bool becomes(const std::atomic<int>& value, int wanted) {
  for (const auto until = std::chrono::steady_clock::now() + 10s;
       std::chrono::steady_clock::now() < until;) {
    if (value == wanted) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(RunWatchTest, WorkThatEndsInTimeIsNobodysBusiness) {
  std::atomic<int> late = 0;
  {
    RunWatch watch(30ms, [&] { ++late; });
    for (int run = 0; run < 5; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      watch.add([=] { return std::chrono::steady_clock::now() - begin > 5ms; });
      std::this_thread::sleep_for(20ms);
    }
    std::this_thread::sleep_for(60ms);
  }
  EXPECT_EQ(late, 0);
}

TEST(RunWatchTest, WorkThatDoesNotEndIsToldOfOnce) {
  std::atomic<int> late = 0;
  RunWatch watch(30ms, [&] { ++late; });
  watch.add([] { return true; });
  watch.add([] { return false; });
  watch.add([] { return false; });
  EXPECT_TRUE(becomes(late, 1));
  watch.add([] { return false; });
  std::this_thread::sleep_for(80ms);
  EXPECT_EQ(late, 1);
}

// It is not asked about again and again while a Run takes its time.
TEST(RunWatchTest, WorkIsAskedAboutWhenItIsDue) {
  std::atomic<int> late = 0, asked = 0;
  RunWatch watch(100ms, [&] { ++late; });
  watch.add([&] { return ++asked > 1000; });
  EXPECT_TRUE(becomes(late, 1));
  EXPECT_LE(asked, 3);
}

TEST(RunWatchTest, EndsWhileWorkIsUnderWay) {
  const auto watch = std::make_unique<RunWatch>(1h, [] { FAIL(); });
  watch->add([] { return false; });
}

}  // namespace
}  // namespace tenon::distributed
