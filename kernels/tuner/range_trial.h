// All plans of one fusion for one range of rows: compiled, checked against each other and measured
// in turns.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/tunable_plans.h"
#include "kernels/tuner/judge.h"
#include "kernels/tuner/more_plans.h"
#include "kernels/tuner/trial.h"
#include "kernels/tuner/trial_graph.h"
#include "kernels/tuner/tune_log.h"

namespace tenon::kernels {

struct TunerOptions {
  TrialRules rules = {};
  int told = 8;  // configs of a candidate's range that are measured
  // Then what these make promising and what is cut about as the fastest: so many each time, and so
  // often at most, as long as that gains.
  int more = 8, times_more = 3;
  MorePlans* more_plans = kernels::more_plans;  // tests choose themselves
  bool whole_partition = true;
  // Tests plant faults here: called with every program before it runs.
  std::function<void(const TunablePlan&, Program&)> alter = {};
};

struct PlanResult {
  TrialFailure failure;
  double microseconds = 0;  // 0: it was not measured
  bool ok() const { return failure.status == TrialStatus::kOk; }
};

class RangeTrial {
 public:
  // Refers to all that it gets but the range.
  RangeTrial(const ir::Graph& fused, const TunableFusion& fusion, TunableRange range,
             std::shared_ptr<device::Device> device, const TunerOptions& options);

  // Rows at which plans are measured (rows_measured).
  int64_t at_rows() const { return at_rows_; }
  const TunableFusion& fusion() const { return fusion_; }
  // With the plans that were added.
  const TunableRange& range() const { return range_; }
  LoggedPlan logged(size_t plan) const;

  // Of different plans on several threads at once.
  void compile(size_t plan);
  // Throws DeviceStuck where no other plan can be tried in this process.
  const std::vector<PlanResult>& measure(TuneLog& log);
  const std::vector<PlanResult>& results() const { return results_; }
  // Why nothing may be recorded of this range; empty: the fastest may.
  const std::string& objection() const { return objection_; }

 private:
  struct Running;
  void make_room();
  Settings trial_settings(const TunablePlan& plan) const;
  Support is_offered(const TunablePlan& plan, const ir::Graph& graph,
                     const Settings& settings) const;
  void load_kernels(size_t plan, const Program& program);
  void set_failure(size_t plan, TrialStatus status, std::string reason);
  bool check(size_t plan, TuneLog& log, Running& running);
  void judge(size_t plan, TrialMemory& memory);
  bool fits_at_once() const;
  void begin(Running& running) const;
  std::vector<size_t> check_all(std::deque<size_t> open, TuneLog& log, Running& running);
  std::vector<size_t> take_previews(std::vector<size_t> ready, TuneLog& log, Running& running);
  double fastest(const std::vector<size_t>& plans, Running& running);
  void call_slow(size_t plan, double fastest);
  void time_in_turns(std::vector<size_t> plans, Running& running);
  bool measure_more(TuneLog& log, Running& running);
  double fastest_so_far() const;
  std::vector<size_t> close_ones(const Running& running) const;

  const ir::Graph& fused_;
  const TunableFusion& fusion_;
  TunableRange range_;
  std::shared_ptr<device::Device> device_;
  const TunerOptions& options_;
  int64_t at_rows_ = 0;
  TrialGraph trial_;    // in a row of copies
  TrialGraph preview_;  // alone
  std::vector<PlanResult> results_;
  std::vector<std::shared_ptr<const Settings>> settings_;  // that programs refer to
  std::vector<std::unique_ptr<Program>> programs_;         // null: it did not compile, or ran
  // Of candidates that the cost model would not take one copy runs first, and where its weights in
  // L2 do not make it fast enough, no more: some pack weights on the host.
  std::vector<bool> previews_;
  std::vector<std::vector<std::shared_ptr<const device::LoadedKernel>>> kernels_;
  // What the first plan that ran gave, which others are held to, and how many of these agreed. It
  // outlives what hangs: inputs are the same each time.
  std::vector<HostOutput> trusted_;
  size_t trusted_plan_ = 0, agreeing_ = 0, differing_ = 0;
  std::string objection_;
};

}  // namespace tenon::kernels
