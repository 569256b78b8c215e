// Whole Runs as one CUDA graph each, for cuda_graph_scope=session: the runtime replays them and
// does not call our nodes again. Every replay uses the addresses of the Run that was captured.
#pragma once

#include <onnxruntime_c_api.h>

#include <chrono>
#include <map>
#include <memory>

#include "kernels/device/stream.h"

namespace tenon::provider {

class SessionGraph {
 public:
  // All Runs of the session go to this one stream.
  SessionGraph(std::shared_ptr<device::Device> device, std::unique_ptr<device::Stream> stream,
               std::chrono::milliseconds deadline);

  device::StreamHandle stream() const { return stream_->handle(); }
  void start(const OrtRunOptions& options);
  void end(const OrtRunOptions& options);
  bool captured(int id) const { return graphs_.contains(id); }
  void replay(int id);
  void release(int id) { graphs_.erase(id); }

 private:
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  const std::chrono::milliseconds deadline_;
  std::map<int, int> runs_;  // that ended, per graph
  std::map<int, std::unique_ptr<device::Graph>> graphs_;
};

}  // namespace tenon::provider
