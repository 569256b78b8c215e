#include "base/parallel_region.h"

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tenon {
namespace {

using Call = std::function<void()>;
using StartThreads = std::function<void(const Call&)>;

StartThreads own_threads(int count) {
  return [count](const Call& call) {
    std::vector<std::jthread> threads;
    for (int i = 1; i < count; ++i) threads.emplace_back(call);
    call();
  };
}

// A runtime whose threads are all busy elsewhere.
void one_after_the_other(const Call& call) {
  for (int i = 0; i < 4; ++i) call();
}

// Each launch reads what all pieces of the one before wrote.
void run_chain(const StartThreads& start_threads) {
  constexpr int64_t kElements = 97;
  constexpr int kLaunches = 400;
  std::vector<int64_t> from(kElements), to(kElements);
  std::iota(from.begin(), from.end(), 0);
  const int64_t total = std::accumulate(from.begin(), from.end(), int64_t{0});
  ParallelRegion region;
  region.run(start_threads, [&] {
    for (int launch = 0; launch < kLaunches; ++launch) {
      const ParallelRegion::Range rotate = [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          to[static_cast<size_t>(i)] = from[static_cast<size_t>((i + 1) % kElements)] + 1;
        }
      };
      region.run_pieces(kElements, 1 + launch % 30, rotate);
      std::swap(from, to);
    }
  });
  EXPECT_EQ(std::accumulate(from.begin(), from.end(), int64_t{0}), total + kElements * kLaunches);
  EXPECT_EQ(from[0], kLaunches % kElements + kLaunches);
}

TEST(ParallelRegionConcurrent, LaunchesSeeWhatEarlierOnesWrote) {
  for (int threads : {1, 2, 3, 8}) run_chain(own_threads(threads));
}

TEST(ParallelRegionConcurrent, NeedsNoThreadButTheDriver) { run_chain(one_after_the_other); }

TEST(ParallelRegionConcurrent, WakesHelpersThatWentToSleep) {
  ParallelRegion region;
  std::atomic<int> calls = 0;
  region.run(own_threads(3), [&] {
    for (int launch = 0; launch < 3; ++launch) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than anyone spins
      region.run_pieces(6, 6, [&](int64_t first, int64_t last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        calls += static_cast<int>(last - first);
      });
    }
  });
  EXPECT_EQ(calls, 18);
}

TEST(ParallelRegionConcurrent, RethrowsWhatAPieceThrows) {
  ParallelRegion region;
  bool went_on = false;
  EXPECT_THROW(region.run(own_threads(4),
                          [&] {
                            region.run_pieces(100, 100, [](int64_t first, int64_t) {
                              if (first == 57) throw std::runtime_error("piece 57");
                            });
                            went_on = true;
                          }),
               std::runtime_error);
  EXPECT_FALSE(went_on) << "a launch must not read what a failed one left";
}

TEST(ParallelRegionConcurrent, RethrowsWhatTheDriverThrows) {
  ParallelRegion region;
  EXPECT_THROW(region.run(own_threads(4), [] { throw std::invalid_argument("a bad index"); }),
               std::invalid_argument);
}

TEST(ParallelRegionConcurrent, MorePiecesThanTasksAreCutDown) {
  ParallelRegion region;
  std::atomic<int> calls = 0;
  region.run(own_threads(2), [&] {
    region.run_pieces(3, 50, [&](int64_t first, int64_t last) {
      EXPECT_EQ(last, first + 1);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tenon
