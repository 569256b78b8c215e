// A GPU's memory for the runtime: an arena in device or pinned memory, and weights outside of it.
#pragma once

#include <onnxruntime_c_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "kernels/device/arena.h"
#include "provider/gpus.h"

namespace tenon::provider {

// Touches the device when memory is first asked for, not before: the runtime makes allocators for
// every device at registration.
class Allocator : public OrtAllocator {
 public:
  // `info`: one of the GPU's own. `limit`: bytes of the arena; 0: as much as there is.
  Allocator(Gpu& gpu, const OrtMemoryInfo& info, size_t limit = 0);
  ~Allocator();

 private:
  void* allocate(size_t bytes, device::StreamHandle stream);
  void* reserve(size_t bytes);
  void release(void* memory) noexcept;
  OrtKeyValuePairs* stats() const;
  void shrink();
  device::Arena& arena();
  device::Device& device();

  Gpu& gpu_;
  const OrtMemoryInfo& info_;
  const size_t limit_;
  const device::MemoryKind kind_;
  const bool weights_;
  mutable std::mutex mutex_;
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<device::Arena> arena_;
  std::set<void*> reserved_;
  std::atomic<int64_t> reserves_ = 0;
};

// The runtime carries on with the null pointer of a failed allocation; who meets it says why with
// the message that the calling thread's last failure left.
std::string allocation_failure();

}  // namespace tenon::provider
