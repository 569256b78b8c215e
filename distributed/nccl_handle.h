// One communicator of NCCL's, and what may be asked of it from two threads: the one that calls and
// the one that aborts.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "distributed/nccl_library.h"
#include "distributed/rank_device.h"

namespace tenon::distributed {

// NCCL writes the handle of a split when it is done, which may be after we gave up: the place lives
// as long as anybody may write there. So do those of windows.
using NcclHandlePlace = std::shared_ptr<NcclHandle>;

class NcclCommunicatorHandle {
 public:
  using Milliseconds = std::chrono::milliseconds;
  NcclCommunicatorHandle(const NcclFunctions& functions, std::shared_ptr<RankDevice> device,
                         Milliseconds deadline)
      : functions_(functions), device_(std::move(device)), deadline_(deadline) {}

  const NcclFunctions& functions() const { return functions_; }
  RankDevice& device() { return *device_; }
  const std::shared_ptr<RankDevice>& shared_device() const { return device_; }
  NcclHandle* place() { return place_.get(); }
  void adopt(NcclHandlePlace place) { place_ = std::move(place); }
  bool is_open() const { return is_open_; }
  // Where it is not open: waits for its end, which another thread may be in. True: NCCL came back,
  // and nothing of the communicator runs any more.
  bool wait_for_end() const noexcept;

  // Makes a call of NCCL's and waits until it is done. Empty, or what went wrong.
  std::string call(const std::function<NcclResult(NcclHandle)>& put,
                   const std::function<std::string()>& interrupted);
  // Ends what NCCL does here, on all threads and on the GPU; waits a bounded time for that.
  // `also_in_use`: what NCCL may write to until then.
  void abort(std::shared_ptr<void> also_in_use = nullptr) noexcept;
  // The good end: waits for what is under way.
  void close() noexcept;

 private:
  std::string wait(NcclResult result, const std::function<std::string()>& interrupted);
  NcclHandle take() noexcept;
  void end_with(NcclResult (*function)(NcclHandle),
                std::shared_ptr<void> also_in_use = nullptr) noexcept;
  Milliseconds bound() const { return std::min(deadline_, Milliseconds(5000)); }

  const NcclFunctions& functions_;
  const std::shared_ptr<RankDevice> device_;
  const Milliseconds deadline_;
  std::mutex mutex_;  // taken for each call, so that none meets a handle that is gone
  NcclHandlePlace place_ = std::make_shared<NcclHandle>(nullptr);
  std::atomic<bool> is_open_ = true;
  enum class End : uint8_t { kNone, kDone, kLeftBehind };
  std::atomic<End> end_ = End::kNone;
};

}  // namespace tenon::distributed
