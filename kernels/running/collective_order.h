// Collectives in CUDA graphs where the engine was told that they do not mix: no graph with some may
// run beside another, and none may be put on a stream by itself while one runs, wherever that
// stream waits. One for all executables of a session.
#pragma once

#include <memory>
#include <mutex>

#include "kernels/device/stream.h"

namespace tenon::kernels {

class CollectiveOrder {
 public:
  // `streams_last`: as of DeviceRunOptions.
  CollectiveOrder(std::shared_ptr<device::Device> device, bool streams_last)
      : end_(std::move(device)), streams_last_(streams_last) {}

  // Collectives go onto a stream by themselves: waits until no graph runs.
  void before_launches();
  // A graph with collectives goes onto the stream: waits where the one before is on another.
  void before_graph(device::Stream& stream);
  void after_graph(device::Stream& stream);

 private:
  void wait();  // with the lock

  std::mutex mutex_;
  device::Event end_;  // of the last graph
  const bool streams_last_;
  bool is_under_way_ = false;
  device::StreamHandle stream_ = nullptr;    // of it
  std::shared_ptr<const void> stream_kept_;  // null: it may be another one under the same handle
};

}  // namespace tenon::kernels
