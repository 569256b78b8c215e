// Memory of NCCL's allocator, which it can register as a window: kernels of one rank then read and
// write that of the others, without buffers between.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/nccl_handle.h"

namespace tenon::distributed {

class NcclMemory final : public EngineMemory {
 public:
  // Throws CollectiveError.
  NcclMemory(std::shared_ptr<NcclCommunicatorHandle> handle, size_t bytes);
  // The window goes first, which needs no other rank. What NCCL may still use is not freed.
  ~NcclMemory() override;
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* data() const override { return data_; }
  // All ranks. Empty, or what went wrong.
  std::string register_window(const std::function<std::string()>& interrupted);
  // NCCL makes none, and says nothing, where it could not use one.
  bool has_window() const { return *window_ != nullptr; }
  std::shared_ptr<void> window_place() const { return window_; }

 private:
  bool end_window() noexcept;

  const std::shared_ptr<NcclCommunicatorHandle> handle_;
  const size_t bytes_;
  void* data_ = nullptr;
  const std::shared_ptr<NcclWindow> window_ = std::make_shared<NcclWindow>(nullptr);
};

}  // namespace tenon::distributed
