// Copies between the host and the GPUs, and between GPUs.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/device/stream.h"
#include "provider/gpus.h"

namespace tenon::provider {

class DataTransfer : public OrtDataTransferImpl {
 public:
  explicit DataTransfer(std::span<const std::unique_ptr<Gpu>> gpus);

 private:
  bool can_copy(const OrtMemoryDevice& from, const OrtMemoryDevice& to) const;
  void copy(const OrtValue& from, OrtValue& to, OrtSyncStream* stream);
  device::Stream& own_stream(int ordinal);

  const std::span<const std::unique_ptr<Gpu>> gpus_;
  // For copies that the runtime gives no stream: they are done when the call returns.
  std::mutex mutex_;
  std::map<int, std::unique_ptr<device::Stream>> streams_;
};

// One of the two places is a GPU's; its number, or -1.
int ordinal_of(const OrtMemoryDevice& a, const OrtMemoryDevice& b);
// Orders the copy on `stream`. Throws where memory that was asked for is missing.
void copy_tensor(const OrtValue& from, OrtValue& to, device::Stream& stream);

}  // namespace tenon::provider
