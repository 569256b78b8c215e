#include "base/parallel_region.h"

#include <algorithm>
#include <chrono>

#include "base/relax.h"

namespace tenon {
namespace {

constexpr uint64_t kLaunch = uint64_t{1} << 32;
constexpr uint64_t kOver = ~uint64_t{0} << 32;  // no launch has this number

int64_t pieces_left(uint64_t offer) { return static_cast<int64_t>(offer & (kLaunch - 1)); }

// Until the value is another one: what most launches leave to wait for is shorter than going to
// sleep, and what is not shall not burn a core.
template <typename Value>
void wait_while(const std::atomic<Value>& value, Value old) {
  constexpr int kChecks = 64;
  constexpr std::chrono::microseconds kSpin(50);
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kChecks; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() - begin < kSpin);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

void ParallelRegion::run(const std::function<void(const std::function<void()>&)>& start_threads,
                         const std::function<void()>& drive) {
  start_threads([&] { join(drive); });
  if (failure_) std::rethrow_exception(failure_);
}

// Throws nothing: the threads are a runtime's, written in C for all we know.
void ParallelRegion::join(const std::function<void()>& drive) {
  if (has_driver_.exchange(true)) return help();
  try {
    drive();
  } catch (...) {
    record_failure();
  }
  offer_.store(kOver, std::memory_order_release);
  offer_.notify_all();
}

void ParallelRegion::run_pieces(int64_t total, int64_t pieces, const Range& fn) {
  fn_ = &fn;
  total_ = total;
  pieces_ = std::clamp<int64_t>(pieces, 1, std::min<int64_t>(total, INT32_MAX));
  unfinished_.store(pieces_, std::memory_order_relaxed);
  const uint64_t launch = (offer_.load(std::memory_order_relaxed) / kLaunch + 1) * kLaunch;
  offer_.store(launch + static_cast<uint64_t>(pieces_), std::memory_order_release);
  offer_.notify_all();
  for (uint64_t seen = offer_.load(); pieces_left(seen) > 0; seen = offer_.load()) take_piece(seen);
  for (int64_t left = unfinished_.load(std::memory_order_acquire); left > 0;
       left = unfinished_.load(std::memory_order_acquire)) {
    wait_while(unfinished_, left);
  }
  if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(failure_);
}

void ParallelRegion::help() {
  for (uint64_t seen = offer_.load(std::memory_order_acquire); seen < kOver;
       seen = offer_.load(std::memory_order_acquire)) {
    if (pieces_left(seen) > 0) {
      take_piece(seen);
    } else {
      wait_while(offer_, seen);
    }
  }
}

// Unless another thread was faster.
void ParallelRegion::take_piece(uint64_t seen) {
  if (!offer_.compare_exchange_strong(seen, seen - 1, std::memory_order_acq_rel)) return;
  const int64_t piece = pieces_ - pieces_left(seen);
  try {
    if (!failed_.load(std::memory_order_relaxed)) {
      (*fn_)(total_ * piece / pieces_, total_ * (piece + 1) / pieces_);
    }
  } catch (...) {
    record_failure();
  }
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
}

void ParallelRegion::record_failure() {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_) failure_ = std::current_exception();
  failed_ = true;
}

}  // namespace tenon
