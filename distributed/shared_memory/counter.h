// A number in memory that processes share: one of them raises it, others wait until it has come to
// a value. They look for a while and then sleep, so that there may be more ranks than cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tenon::distributed {

// Where the next value is another core's to write.
inline constexpr size_t kCacheLine = 128;

class alignas(kCacheLine) SharedCounter {
 public:
  // By its owner alone. What it wrote before is seen by who sees the value.
  void set(uint32_t value);
  uint32_t get() const { return value_.load(std::memory_order_relaxed); }  // by its owner
  // Numbers go round: what is less than half of all ahead has been reached.
  bool reached(uint32_t wanted) const {
    return static_cast<int32_t>(value_.load(std::memory_order_acquire) - wanted) >= 0;
  }
  // Looks again and again, for so long; whether it has come.
  bool spin_until(uint32_t wanted, std::chrono::microseconds most) const;
  // Sleeps until it changes or the time is over; whether it has come.
  bool sleep_until(uint32_t wanted, std::chrono::milliseconds most);
  // Those that sleep look what is the matter.
  void wake();

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};
// All bits zero is a counter at 0, and no process has locks inside that another would miss.
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace tenon::distributed
