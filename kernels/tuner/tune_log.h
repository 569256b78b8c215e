// What a tuner did, as a file of JSON lines (docs/tuning.md has the fields). A plan is named before
// it runs, so that the next process knows which one this process did not survive.
#pragma once

#include <fstream>
#include <map>
#include <string>

#include "kernels/autotune/tuning_record.h"
#include "kernels/tunable_plans.h"
#include "kernels/tuner/trial.h"

namespace tenon::kernels {

// A plan of a range, as the log names it.
struct LoggedPlan {
  const FusionKey& fusion;
  RowRange rows;
  int64_t at_rows = 0;
  const TunablePlan& plan;
  bool is_untuned = false;

  std::string key() const;
};

struct MeasuredKernel {
  RecordedKernel kernel;
  double microseconds = 0;  // 0: it was not measured
};

struct RangeSummary {
  MeasuredKernel chosen, untuned;
  std::string decided_by;  // "alone", "partition"
  double seconds = 0;
  size_t done = 0, of = 0;
};

class TuneLog {
 public:
  explicit TuneLog(const std::string& path);  // empty: nothing is written

  // Why a plan must not be tried again; empty: it may.
  std::string why_not(const LoggedPlan& plan) const;

  void begin(const std::string& partition, const TuningMachine& machine, size_t fusions,
             size_t ranges, size_t plans);
  void trying(const LoggedPlan& plan);
  void tried(const LoggedPlan& plan, const TrialFailure& failure, double microseconds);
  void range(const FusionKey& fusion, RowRange rows, int64_t at_rows, const RangeSummary& summary);
  void note(const std::string& text);
  void end(const std::string& partition, double seconds, size_t records);

 private:
  void read(const std::string& path);
  void write(const std::string& line);  // throws UserError where it cannot

  std::string path_;
  std::ofstream file_;
  std::map<std::string, std::string> given_up_;  // plans, with the reason
};

std::string utc_now();  // "2026-11-18T12:00:00Z"

}  // namespace tenon::kernels
