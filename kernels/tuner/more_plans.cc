#include "kernels/tuner/more_plans.h"

#include <map>
#include <string_view>

#include "codegen/cost_factors.h"
#include "kernels/cost_fit/promising_plans.h"

namespace tenon::kernels {
namespace {

// Of one candidate; what the cost model has no words for is left out.
struct Measured {
  const TunablePlan* like = nullptr;
  std::vector<MeasuredPlan> plans = {};
};

std::map<std::string_view, Measured> by_candidate(const TunableRange& range,
                                                  std::span<const double> microseconds,
                                                  int64_t at_rows) {
  std::map<std::string_view, Measured> measured;
  for (size_t i = 0; i < range.plans.size(); ++i) {
    const TunablePlan& plan = range.plans[i];
    MeasuredPlan described;
    described.microseconds = microseconds[i];
    if (microseconds[i] <= 0) continue;
    if (!describe_plan(plan.kernel.config, plan.problem, at_rows, described)) continue;
    Measured& of = measured[plan.kernel.candidate];
    of.like = &plan;
    of.plans.push_back(described);
  }
  return measured;
}

}  // namespace

std::vector<TunablePlan> more_plans(const ir::Graph& fused, const TunableFusion& fusion,
                                    const TunableRange& range, std::span<const double> microseconds,
                                    int64_t at_rows, size_t count) {
  std::vector<TunablePlan> more;
  for (const auto& [candidate, measured] : by_candidate(range, microseconds, at_rows)) {
    std::vector<PlannedKernel> unlisted = unlisted_kernels(fused, fusion, range, *measured.like);
    std::vector<MeasuredPlan> described;
    std::erase_if(unlisted, [&](const PlannedKernel& kernel) {
      MeasuredPlan plan;
      if (!describe_plan(kernel.config, kernel.problem, at_rows, plan)) return true;
      described.push_back(plan);
      return false;
    });
    const codegen::GpuCosts& costs = codegen::costs_of(*measured.like->settings->gpu);
    for (const size_t place : promising_plans(measured.plans, described, costs, count)) {
      more.push_back(plan_of(fused, fusion, *measured.like, unlisted[place]));
    }
  }
  return more;
}

}  // namespace tenon::kernels
