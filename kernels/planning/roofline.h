// How long a node takes at least: its bytes through memory, or an attention's operations. What a
// plan is expected to cost where its candidate has no model of its own.
#pragma once

#include <optional>

#include "codegen/gpu_costs.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Keys of an attention that the rows of queries do not tell, in estimates and trials.
inline constexpr int64_t kOpenKeys = 2048;

// What it depends on. `rows`: where bytes and operations were counted; each one more has
// `row_bytes` more, but operations do not grow by rows alone.
struct RooflineProblem {
  int64_t bytes = 0, row_bytes = 0, rows = 1, flops = 0;
  int sm_count = 1;

  ProblemNumbers numbers() const;
  // Empty where a number is missing or cannot be.
  static std::optional<RooflineProblem> from(const ProblemNumbers& numbers);
  Support move_to(int64_t other_rows);
};
double estimate_roofline(const RooflineProblem& problem, const codegen::GpuCosts& costs);

// Puts microseconds into the kernels of `plan` that have none: inputs and outputs once through
// memory, at the rows that the kernel's range counts at; open sizes besides are 1.
void add_roofline(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  Plan& plan);

}  // namespace tenon::kernels
