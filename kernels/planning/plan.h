// What a candidate decided about a node before any code is made: which rows it takes, how its
// kernels are cut, what they should cost.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "base/support.h"
#include "kernels/planning/kernel_config.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct RangePlan {
  RowRange rows;
  // Best first. The first one is lowered, unless it turns out not to fit a CTA: then the next.
  std::vector<PlannedKernel> kernels;
};

// Refers to the graph, node and settings that it was made from: they outlive it.
struct Plan {
  std::vector<RangePlan> ranges;  // in the order of rows
  std::function<Lowered()> lower;
  // Of the node, where ranges tell them apart.
  Dim rows = 1;
  // Which of them the candidate takes; others are left to the next one in its table.
  RowRange takes = {};

  // Of a candidate with one kernel for whatever comes.
  static Plan of(KernelConfig config, std::function<Lowered()> lower);
};

// A plan, or the reason why there is none.
struct Planned {
  std::optional<Plan> plan;
  Support support = Support::yes();

  Planned(Plan plan) : plan(std::move(plan)) {}
  Planned(Support refusal) : support(std::move(refusal)) {}  // NOLINT: `return answer;`
  static Planned no(std::string reason) { return Support::no(std::move(reason)); }
};

}  // namespace tenon::kernels
