// The runtime's streams and notifications, over the device's.
#pragma once

#include <onnxruntime_c_api.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/device/stream.h"
#include "provider/gpus.h"

namespace tenon::provider {

class SyncStream : public OrtSyncStreamImpl {
 public:
  // `borrowed`: the caller's own stream, used and never destroyed.
  SyncStream(Gpu& gpu, std::shared_ptr<device::Device> device,
             std::optional<device::StreamHandle> borrowed, std::chrono::milliseconds deadline);
  ~SyncStream();

 private:
  void flush();
  OrtSyncNotificationImpl* notification();

  Gpu& gpu_;
  std::shared_ptr<device::Device> device_;
  const std::chrono::milliseconds deadline_;
  device::Stream stream_;
};

// The streams that partitions used on this thread since they were last taken. The runtime only logs
// what goes wrong when it waits for a stream at the end of a Run, so the session waits before it.
void note_stream(device::StreamHandle stream);
const std::vector<device::StreamHandle>& take_noted_streams();  // valid until the next call

}  // namespace tenon::provider
