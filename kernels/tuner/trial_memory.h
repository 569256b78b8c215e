// The caller's side of a trial: inputs and outputs on the device, the same for all plans that are
// compared, each between redzones.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/executable.h"
#include "kernels/tuner/judge.h"
#include "kernels/tuner/redzones.h"
#include "kernels/tuner/trial_graph.h"

namespace tenon::kernels {

class TrialMemory final : public RunContext {
 public:
  TrialMemory(std::shared_ptr<device::Device> device, std::vector<TrialInput> inputs,
              std::vector<TrialOutput> outputs, std::shared_ptr<Redzones> redzones);

  Input input(size_t index) override { return {inputs_[index].get(), described_[index].dims}; }
  void* output(size_t index, std::span<const int64_t> dims) override;
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_.handle(); }

  device::Stream& own_stream() { return stream_; }
  const std::shared_ptr<Redzones>& redzones() { return redzones_; }
  device::Address spare() const { return spare_.address(); }  // a few bytes that nobody uses
  // Inputs as they were, outputs poisoned.
  void reset();
  // The first `count` of them, once the stream's work is done.
  std::vector<HostOutput> read_outputs(size_t count);

 private:
  void fill(size_t input);

  std::shared_ptr<device::Device> device_;
  device::Stream stream_;
  std::shared_ptr<Redzones> redzones_;
  device::Buffer spare_;
  std::vector<TrialInput> described_;
  std::vector<TrialOutput> results_;
  std::vector<std::shared_ptr<void>> inputs_, outputs_;
};

}  // namespace tenon::kernels
