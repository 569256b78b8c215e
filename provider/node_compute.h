// Runs an executable for the runtime: OrtKernelContext in, launches out.
#pragma once

#include <onnxruntime_c_api.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "provider/compile.h"
#include "provider/profiler.h"
#include "provider/rank_runs.h"

namespace tenon::provider {

struct NodeInput {
  size_t index = 0;  // of the fused node
  ONNXTensorElementDataType type{};
};

class NodeCompute : public OrtNodeComputeInfo {
 public:
  // `users`: the stream that the session's options name, which every Run must come on.
  NodeCompute(CompiledPartition compiled, const OrtNode& fused_node, const Target& target,
              std::optional<device::StreamHandle> users);
  // What only shows when a Run's work on the device is done.
  void check_finished() { executable_->check_finished(); }

 private:
  // A packed default arrives again at every Run, from the runtime or from the caller: refuse when
  // it is not the default any more.
  struct Default {
    size_t input = 0;
    std::string name;
    ir::TensorPtr value;
    // The runtime's own copy on a device, once seen equal.
    std::unique_ptr<std::atomic<const void*>> verified;
  };

  void compute(OrtKernelContext& context);
  void run_once(OrtKernelContext& context, kernels::RunContext& run);
  void check_defaults(OrtKernelContext& context, kernels::RunContext& run) const;
  bool is_default(const ir::Tensor& expected, const void* data, size_t bytes,
                  kernels::RunContext& run) const;

  std::shared_ptr<device::Device> device_;  // where inputs and outputs are; null: host memory
  const Gpu* gpu_;
  const std::optional<device::StreamHandle> users_stream_;
  std::unique_ptr<kernels::Executable> executable_;
  const LaunchNames launch_names_;
  // By the executable's index.
  std::vector<NodeInput> inputs_;
  std::vector<size_t> outputs_;  // the fused node's index
  std::vector<Default> defaults_;
  std::optional<RankRuns> rank_runs_;  // of one of several ranks
};

}  // namespace tenon::provider
