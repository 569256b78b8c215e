#include "kernels/tuner/more_plans.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "codegen/cost_factors.h"
#include "kernels/cost_fit/promising_plans.h"
#include "kernels/tuner/nearest_configs.h"

namespace tenon::kernels {
namespace {

// Of one candidate; what the cost model has no words for is left out.
struct Measured {
  const TunablePlan* like = nullptr;
  int overlapping = 0;  // launches, where they were measured
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
    if (const auto* gemm = std::get_if<GemmConfig>(&described.model)) {
      of.overlapping = std::max(of.overlapping, gemm->problem.overlapping);
    }
    of.plans.push_back(described);
  }
  return measured;
}

// What the cost model takes for promising, in the order of `unlisted`.
std::vector<size_t> promising(const std::vector<PlannedKernel>& unlisted, const Measured& measured,
                              int64_t at_rows, size_t count) {
  std::vector<MeasuredPlan> described;
  std::vector<size_t> places;
  for (size_t i = 0; i < unlisted.size(); ++i) {
    MeasuredPlan plan;
    if (!describe_plan(unlisted[i].config, unlisted[i].problem, at_rows, plan)) continue;
    described.push_back(plan);
    places.push_back(i);
  }
  const codegen::GpuCosts& costs = codegen::costs_of(*measured.like->settings->gpu);
  std::vector<size_t> found = promising_plans(measured.plans, described, costs, count);
  for (size_t& place : found) place = places[place];
  return found;
}

}  // namespace

std::vector<TunablePlan> more_plans(const ir::Graph& fused, const TunableFusion& fusion,
                                    const TunableRange& range, std::span<const double> microseconds,
                                    int64_t at_rows, size_t count) {
  std::vector<TunablePlan> more;
  const TunablePlan* fastest = nullptr;
  double least = std::numeric_limits<double>::max();
  for (size_t i = 0; i < range.plans.size(); ++i) {
    if (microseconds[i] <= 0 || microseconds[i] >= least) continue;
    fastest = &range.plans[i];
    least = microseconds[i];
  }
  for (const auto& [candidate, measured] : by_candidate(range, microseconds, at_rows)) {
    std::vector<PlannedKernel> unlisted = unlisted_kernels(fused, fusion, range, *measured.like);
    for (PlannedKernel& kernel : unlisted) set_overlapping(kernel.problem, measured.overlapping);
    std::vector<size_t> taken = promising(unlisted, measured, at_rows, count / 2);
    if (fastest->kernel.candidate == candidate) {
      for (const size_t place : nearest_configs(fastest->kernel.config, unlisted)) {
        if (taken.size() < count && std::ranges::count(taken, place) == 0) taken.push_back(place);
      }
    }
    for (const size_t place : taken) {
      more.push_back(plan_of(fused, fusion, *measured.like, unlisted[place]));
    }
  }
  return more;
}

}  // namespace tenon::kernels
