#include "distributed/run_watch.h"

#include <utility>

#include "distributed/rendezvous/quiet_thread.h"

namespace tenon::distributed {

RunWatch::RunWatch(std::chrono::milliseconds deadline, std::function<void()> on_late)
    : deadline_(deadline),
      on_late_(std::move(on_late)),
      thread_(quiet_thread([this] { watch(); })) {}

RunWatch::~RunWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RunWatch::add(std::function<bool()> is_done) {
  const std::lock_guard lock(mutex_);
  drop_finished();
  work_.push_back({Clock::now() + deadline_, std::move(is_done)});
  // The thread sleeps until the oldest is due, so only the first of all wakes it.
  if (work_.size() == 1) changed_.notify_all();
}

void RunWatch::drop_finished() {
  while (!work_.empty() && work_.front().is_done()) work_.pop_front();
}

void RunWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (work_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_until(lock, work_.front().until);
    drop_finished();
    if (stops_ || work_.empty() || Clock::now() < work_.front().until) continue;
    lock.unlock();
    on_late_();
    return;
  }
}

}  // namespace tenon::distributed
