// The constants of the cost model, fitted to what a tuner measured, and how far off the model was
// before and after.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu_costs.h"
#include "kernels/cost_fit/measured_plan.h"

namespace tenon::kernels {

// Of |log(expected / measured)|.
struct ModelError {
  size_t plans = 0;
  double median = 0, ninetieth = 0;
};

struct ModelQuality {
  ModelError all;
  std::map<std::string_view, ModelError> by_skeleton;
  // The time of what the model takes over the best time of its group, in groups of two plans or
  // more.
  size_t groups = 0;
  double mean_regret = 1, worst_regret = 1;  // the mean is geometric
};
ModelQuality judge_costs(const codegen::GpuCosts& costs, const std::vector<MeasuredPlan>& plans);

struct CostFit {
  codegen::GpuCosts costs;           // three digits each
  std::vector<std::string> fitted;   // names of constants
  std::vector<std::string> kept;     // those that no plan depends on stay as they are
  std::vector<std::string> bounded;  // of those fitted: as far from the table's as they may be
  ModelQuality before, after;
};

// How far a constant may go: from an eighth of the table's to eight times that.
inline constexpr double kMostCostChange = 8;

CostFit fit_costs(const codegen::GpuCosts& table, const std::vector<MeasuredPlan>& plans);

// As codegen/arch_spec.cc has it.
std::string table_text(const codegen::GpuCosts& costs);

}  // namespace tenon::kernels
