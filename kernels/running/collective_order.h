// The order of Runs with collectives, where the engine leaves it to us: those of one Run end before
// those of the next begin, whatever their streams. NCCL that was told that graphs do not mix asks
// for more: no collective is put on a stream by itself while a graph with some runs, wherever that
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
  void before_launches(device::Stream& stream);
  void after_launches(device::Stream& stream) { note(stream, false); }
  // A graph with collectives goes onto the stream: waits where the one before is on another.
  void before_graph(device::Stream& stream);
  void after_graph(device::Stream& stream) { note(stream, true); }

 private:
  void wait();  // with the lock
  bool is_last(const device::Stream& stream) const;
  void note(device::Stream& stream, bool is_graph);

  std::mutex mutex_;
  device::Event end_;  // of the last Run
  const bool streams_last_;
  bool is_under_way_ = false, is_graph_ = false;
  device::StreamHandle stream_ = nullptr;    // of it
  std::shared_ptr<const void> stream_kept_;  // null: it may be another one under the same handle
};

}  // namespace tenon::kernels
