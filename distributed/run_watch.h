// Ends waits of a GPU that nobody else could end. What a Run put on a stream waits there for other
// ranks: a thread looks whether it was done by its deadline, and says so where it was not.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tenon::distributed {

class RunWatch {
 public:
  // `on_late` is called once, in a thread of its own, which it must not end.
  RunWatch(std::chrono::milliseconds deadline, std::function<void()> on_late);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Work that was just put on a stream. `is_done` may be called by any thread.
  void add(std::function<bool()> is_done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    Clock::time_point until;
    std::function<bool()> is_done;
  };
  void watch();
  void drop_finished();  // with the lock

  const std::chrono::milliseconds deadline_;
  const std::function<void()> on_late_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // in the order in which it ends
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace tenon::distributed
