// The tuning records of a session: `tune`, `tune_file`, `tune_log` and `require_tuned`.
#pragma once

#include <memory>
#include <string_view>

#include "graph_partitioner/ir/graph.h"
#include "kernels/autotune/tuning_records.h"
#include "provider/options.h"
#include "provider/target.h"

namespace tenon::provider {

// What records for this target must have been measured on.
kernels::TuningMachine tuning_machine(const Target& target);

// Null where the options ask for none. Throws UserError where the file cannot be read; a record
// that cannot is among the problems of the answer.
std::shared_ptr<const kernels::TuningRecords> read_records(const Options& options,
                                                           const Target& target);

// tune=on: measures what has no record yet, writes the file, and returns all records for this
// target; else what the settings have.
std::shared_ptr<const kernels::TuningRecords> tune_partition(const ir::Graph& fused,
                                                             std::string_view partition,
                                                             const kernels::Settings& settings,
                                                             const Options& options,
                                                             const Target& target);

}  // namespace tenon::provider
