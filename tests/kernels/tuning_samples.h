// Records that a tuner could have written of a graph.
#pragma once

#include <memory>
#include <vector>

#include "kernels/autotune/tuning_records.h"
#include "kernels/tunable_plans.h"

namespace tenon::kernels {

inline TuningRecord record_of(const TunableFusion& fusion, const TunableRange& range, size_t plan) {
  TuningRecord record;
  record.fusion = fusion.key.text;
  record.fingerprint = fusion.key.fingerprint;
  record.rows = range.rows;
  record.machine = {"test", 2, 0, "", "0.1.0", "", ""};
  const WantedKernel& kernel = range.plans.at(plan).kernel;
  record.kernel = {kernel.candidate, kernel.config};
  record.microseconds = 1;
  record.untuned_microseconds = 2;
  record.date = "2026-11-18T12:00:00Z";
  return record;
}

// Of each range the plan that comes last: never the untuned one, where that is the first.
inline std::vector<TuningRecord> last_plans(const std::vector<TunableFusion>& fusions) {
  std::vector<TuningRecord> records;
  for (const TunableFusion& fusion : fusions) {
    for (const TunableRange& range : fusion.ranges) {
      records.push_back(record_of(fusion, range, range.plans.size() - 1));
    }
  }
  return records;
}

inline Settings with_records(Settings settings, const std::vector<TuningRecord>& records) {
  settings.records = std::make_shared<const TuningRecords>(
      records, TuningMachine{"test", 2, 0, "", "0.1.0", "", ""});
  return settings;
}

}  // namespace tenon::kernels
