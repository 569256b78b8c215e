// Captures, and waits for a whole device, take turns: while a stream is being captured the driver
// refuses to wait for the device, and breaks the capture for having been asked.
#pragma once

#include <condition_variable>
#include <mutex>

namespace tenon::device {

class CaptureGate {
 public:
  void begin_capture() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waiting_for_device_; });
    ++captures_;
  }
  void end_capture() noexcept {
    {
      const std::lock_guard lock(mutex_);
      --captures_;
    }
    changed_.notify_all();
  }
  // Calls `wait` while no capture is under way and none can begin. One caller at a time.
  template <typename Wait>
  void without_captures(const Wait& wait) {
    const std::lock_guard one(callers_);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return captures_ == 0; });
    waiting_for_device_ = true;
    lock.unlock();
    const Reopen reopen{*this};
    wait();
  }

 private:
  struct Reopen {
    CaptureGate& gate;
    ~Reopen() {
      {
        const std::lock_guard lock(gate.mutex_);
        gate.waiting_for_device_ = false;
      }
      gate.changed_.notify_all();
    }
  };
  std::mutex callers_, mutex_;
  std::condition_variable changed_;
  int captures_ = 0;
  bool waiting_for_device_ = false;
};

}  // namespace tenon::device
