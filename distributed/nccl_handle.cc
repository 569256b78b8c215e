#include "distributed/nccl_handle.h"

#include <fmt/format.h>

#include <thread>

#include "distributed/bounded_call.h"
#include "distributed/messages.h"

namespace tenon::distributed {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string NcclCommunicatorHandle::call(const std::function<NcclResult(NcclHandle)>& put,
                                         const std::function<std::string()>& interrupted) {
  device_->make_current();
  NcclResult result = kNcclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_) return interrupted();
    result = put(*place_);
    if (!is_open_) return interrupted();  // it hung, and was freed by an abort
    if (result != kNcclSuccess && result != kNcclInProgress) {
      return "NCCL: " + functions_.words(result, *place_);
    }
  }
  return wait(result, interrupted);
}

std::string NcclCommunicatorHandle::wait(NcclResult result,
                                         const std::function<std::string()>& interrupted) {
  const auto until = steady_clock::now() + deadline_;
  // Most calls are done at once; connecting takes longer.
  auto pause = std::chrono::microseconds(0);
  while (result == kNcclInProgress) {
    if (steady_clock::now() >= until) {
      return fmt::format("NCCL was not done within {}, it waits for other ranks",
                         time_text(deadline_));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::microseconds(5), std::chrono::microseconds(1000));
    const std::lock_guard lock(mutex_);
    if (!is_open_) return interrupted();
    if (const NcclResult asked = functions_.async_error(*place_, &result); asked != kNcclSuccess) {
      result = asked;
    }
    if (result != kNcclSuccess && result != kNcclInProgress) {
      return "NCCL: " + functions_.words(result, *place_);
    }
  }
  return "";
}

NcclHandle NcclCommunicatorHandle::take() noexcept {
  // A thread that hangs in NCCL with the lock is what abort is there to free.
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto until = steady_clock::now() + bound() / 2;
  while (!lock.try_lock() && steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return is_open_.exchange(false) ? *place_ : nullptr;
}

void NcclCommunicatorHandle::end_with(NcclResult (*function)(NcclHandle),
                                      std::shared_ptr<void> also_in_use) noexcept {
  const NcclHandle handle = take();
  if (handle == nullptr) return;
  // All that it needs goes along: it may outlive us.
  const bool done =
      call_within(bound(), [=, device = device_, place = place_, also = std::move(also_in_use)] {
        try {
          device->make_current();
        } catch (const std::exception&) {  // a lost device does not keep NCCL from ending
        }
        function(handle);
      });
  end_ = done ? End::kDone : End::kLeftBehind;
}

bool NcclCommunicatorHandle::wait_for_end() const noexcept {
  const auto until = steady_clock::now() + 2 * bound();  // more than end_with() takes
  while (end_ == End::kNone && steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return end_ == End::kDone;
}

void NcclCommunicatorHandle::abort(std::shared_ptr<void> also_in_use) noexcept {
  end_with(functions_.abort, std::move(also_in_use));
}

void NcclCommunicatorHandle::close() noexcept {
  if (!is_open_ || *place_ == nullptr) return;
  std::string failed;
  try {
    failed = call([&](NcclHandle handle) { return functions_.finalize(handle); },
                  [] { return "aborted"; });
  } catch (const std::exception& error) {
    failed = error.what();
  }
  failed.empty() ? end_with(functions_.destroy) : abort();
}

}  // namespace tenon::distributed
