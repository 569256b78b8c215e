// Where a session runs, from the device that it was given and its options.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/collective_order.h"
#include "kernels/running/weight_pool.h"
#include "kernels/running/written_sizes.h"
#include "provider/gpus.h"
#include "provider/options.h"

namespace tenon::distributed {
class Job;
}

namespace tenon::provider {

struct Target {
  codegen::HostTarget host;
  Gpu* gpu = nullptr;                                // the session's device; null: the CPU
  std::optional<device::Description> description;    // of the GPU that code is made for
  std::shared_ptr<device::Device> device;            // null: the CPU, or a GPU that is absent
  std::shared_ptr<kernels::WeightPool> weight_pool;  // null: weights are the session's alone
  std::shared_ptr<distributed::Job> job;             // null: one rank
  std::shared_ptr<kernels::CollectiveOrder> collective_order;  // null: the engine orders them
  std::shared_ptr<kernels::WrittenSizes> written_sizes;        // of the graph that is compiled
  std::shared_ptr<const kernels::TuningRecords> records;       // null: candidates go by estimates

  bool on_gpu() const { return description.has_value(); }
  kernels::Settings settings(const Options& options) const;
  std::string name() const;  // "NVIDIA H200 (sm_90a)", "sm_90a, which is not here"
};

// Throws UserError where the options contradict the device, or the device cannot be opened.
Target choose_target(const Options& options, Gpu* gpu);
// The others of target_arch, which a context model is compiled for as well.
std::vector<Target> further_targets(const Options& options);

}  // namespace tenon::provider
