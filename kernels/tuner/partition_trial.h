// A choice between plans that are about as fast alone: the whole partition runs with each.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/autotune/tuning_records.h"
#include "kernels/device/device.h"
#include "kernels/running/weight_pool.h"
#include "kernels/tuner/range_trial.h"
#include "kernels/tuner/trial_memory.h"

namespace tenon::kernels {

// What was chosen for a range of rows of a fusion, and what else it could be.
struct Contest {
  TuningRecord record;  // as measured alone
  Dim rows;             // of the fusion
  int64_t at_rows = 0;
  std::vector<MeasuredKernel> rivals = {};  // about as fast, best first
  std::string decided_by = "alone";

  bool is_untuned() const { return record.kernel == record.untuned; }
};

class PartitionTrial {
 public:
  // Refers to all that it gets.
  PartitionTrial(const ir::Graph& fused, const Settings& settings,
                 std::shared_ptr<device::Device> device, const TuningMachine& machine,
                 const std::vector<TuningRecord>& known, const TunerOptions& options)
      : fused_(fused),
        settings_(settings),
        device_(std::move(device)),
        machine_(machine),
        known_(known),
        options_(options) {}

  // Puts a rival in the place of a record where the partition is faster with it, and what runs
  // untuned where all that was decided does not make the partition faster than that. Returns empty,
  // or why some contests stay as they were decided alone.
  std::string decide(std::vector<Contest>& contests);

 private:
  struct Variant;
  Variant build(const std::vector<Contest>& contests) const;
  TrialMemory& caller_at(const Contest& at);
  double ratio(Variant& variant, Variant& base, const Contest& at);
  void try_rivals(const std::vector<Contest>& contests, const std::string& fusion, size_t rival,
                  Variant& base, std::vector<Contest>& decided);
  void keep_what_gains(std::vector<Contest>& contests);

  const ir::Graph& fused_;
  const Settings& settings_;
  std::shared_ptr<device::Device> device_;
  const TuningMachine& machine_;
  const std::vector<TuningRecord>& known_;  // of what is not contested
  const TunerOptions& options_;
  // Of all variants: where weights, inputs and outputs lie changes times of a microsecond by up to
  // a tenth, which is not a kernel's merit.
  std::shared_ptr<WeightPool> weights_ = std::make_shared<WeightPool>();
  std::map<int64_t, std::unique_ptr<TrialMemory>> callers_;  // by rows
};

}  // namespace tenon::kernels
