// Read first: measures the plans of a partition's fusions on the GPU and records the fastest that
// are right.
//
//   tunable_fusions() --> RangeTrial: each range of rows alone --> records
//                         PartitionTrial: the best few in the whole partition --> records
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/autotune/tuning_records.h"
#include "kernels/device/device.h"
#include "kernels/tuner/range_trial.h"

namespace tenon::kernels {

struct TuningWork {
  std::string partition;  // its name, for the log
  TuningMachine machine;
  std::vector<TuningRecord> known = {};  // of this and other partitions
  TunerOptions options = {};
  // Called with records as soon as there are some, so that nothing is lost where tuning is stopped.
  std::function<void(const std::vector<TuningRecord>&)> keep = {};
};

// Records of what `settings.records` do not have yet. Throws DeviceStuck where the device does not
// answer any more: what was kept counts, and the next process leaves that plan out.
std::vector<TuningRecord> tune(const ir::Graph& fused, const Settings& settings,
                               const std::shared_ptr<device::Device>& device, TuneLog& log,
                               const TuningWork& work);

}  // namespace tenon::kernels
