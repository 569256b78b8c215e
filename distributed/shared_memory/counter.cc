#include "distributed/shared_memory/counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/relax.h"

namespace tenon::distributed {
namespace {

using Clock = std::chrono::steady_clock;

// std::atomic::wait is for threads of one process.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* most) {
  (void)::syscall(SYS_futex, &word, operation, value, most, nullptr, 0);
}

}  // namespace

// Either the sleeper's look comes after the value, or the owner's look after the sleeper: both are
// in the one order of all such operations.
void SharedCounter::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
}

void SharedCounter::wake() { futex(value_, FUTEX_WAKE, INT_MAX, nullptr); }

bool SharedCounter::spin_until(uint32_t wanted, std::chrono::microseconds most) const {
  constexpr int kLooks = 64;
  const auto end = Clock::now() + most;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (reached(wanted)) return true;
      relax();
    }
  } while (Clock::now() < end);
  return reached(wanted);
}

bool SharedCounter::sleep_until(uint32_t wanted, std::chrono::milliseconds most) {
  const timespec time{.tv_sec = most.count() / 1000, .tv_nsec = most.count() % 1000 * 1'000'000};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (!reached(wanted)) futex(value_, FUTEX_WAIT, seen, &time);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return reached(wanted);
}

}  // namespace tenon::distributed
