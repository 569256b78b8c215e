// Handles of cuDNN's. One belongs to the GPU that was current when it was made and serves one
// thread at a time. They stay: at exit nobody could say whether the driver is still there.
#pragma once

#include <cstdint>

#include "kernels/cudnn/library.h"

namespace tenon::cudnn {

// One handle for as long as it lives, of GPU `ordinal`, which is the calling thread's.
class HandleLease {
 public:
  // Where none is free: making one takes time and memory, which a stream that is captured forbids.
  // Who puts work on a stream waits for the few microseconds that another thread has one.
  enum class OnNone : uint8_t { kMake, kWait };
  HandleLease(const Functions& functions, int ordinal, OnNone on_none);
  ~HandleLease();
  HandleLease(const HandleLease&) = delete;
  HandleLease& operator=(const HandleLease&) = delete;
  Handle get() const { return handle_; }

 private:
  const Functions& functions_;
  int ordinal_;
  Handle handle_ = nullptr;
};

// Whether cuDNN runs on GPU `ordinal`, which is the calling thread's: it makes a handle, which a
// driver that is too old for it refuses. Asked once for each, so that every node gets one answer.
Support runs_on(const Functions& functions, int ordinal);

}  // namespace tenon::cudnn
