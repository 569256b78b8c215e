// What a tuner has to measure: for each distinct fusion of a graph, by ranges of rows, every plan
// that a candidate offers. Compiling, measuring and recording them is the tuner's.
#pragma once

#include <memory>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/autotune/fusion_key.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// One way to run a range of rows.
struct TunablePlan {
  WantedKernel kernel;      // what a record of it names
  double microseconds = 0;  // expected; 0: nobody knows
  ProblemNumbers problem;   // what that was estimated from
  Plan plan;                // of all its candidate's rows, with this kernel for these
  // Made with Settings::tuning.kernels = {kernel}, which make_program() takes as well. The plan
  // refers to them, and to the graph.
  std::shared_ptr<const Settings> settings;
};

struct TunableRange {
  RowRange rows;
  std::vector<TunablePlan> plans;  // two or more, all different, in the order of the table
  size_t untuned = 0;              // which of them runs without records
};

struct TunableFusion {
  FusionKey key;
  std::vector<ir::NodeId> nodes;  // all that are equal; the first one is planned
  std::vector<TunableRange> ranges;
};

// `settings.tuning.told`: how many configs of a candidate's range are of interest. Fusions that run
// in one way only are left out, as are nodes that nobody runs.
std::vector<TunableFusion> tunable_fusions(const ir::Graph& fused, const Settings& settings);

// What the candidate of the plan `like` has for these rows besides those that the range lists.
std::vector<PlannedKernel> unlisted_kernels(const ir::Graph& fused, const TunableFusion& fusion,
                                            const TunableRange& range, const TunablePlan& like);
// One of them as a plan.
TunablePlan plan_of(const ir::Graph& fused, const TunableFusion& fusion, const TunablePlan& like,
                    const PlannedKernel& kernel);

}  // namespace tenon::kernels
