// Handles of cuDNN's. One belongs to the GPU that was current when it was made and serves one
// thread at a time, so each GPU has as many as were ever in use at once. They stay: at exit nobody
// could say whether the driver is still there.
#pragma once

#include "kernels/cudnn/library.h"

namespace tenon::cudnn {

// One handle for as long as it lives, of GPU `ordinal`, which is the calling thread's.
class HandleLease {
 public:
  HandleLease(const Functions& functions, int ordinal);
  ~HandleLease();
  HandleLease(const HandleLease&) = delete;
  HandleLease& operator=(const HandleLease&) = delete;
  Handle get() const { return handle_; }

 private:
  const Functions& functions_;
  int ordinal_;
  Handle handle_ = nullptr;
};

}  // namespace tenon::cudnn
