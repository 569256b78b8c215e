#include "kernels/cost_fit/measured_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/gemm_estimate.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 31;

Support read_config(const PlanLine& logged, KernelConfig& config) {
  const std::optional<Skeleton> skeleton = find_skeleton(logged.skeleton);
  if (!skeleton) return Support::no(fmt::format("unknown skeleton '{}'", logged.skeleton));
  config.skeleton = *skeleton;
  for (const auto& [name, value] : logged.knobs) {
    const std::optional<Knob> knob = find_knob(name);
    if (!knob) return Support::no(fmt::format("unknown knob '{}'", name));
    config.knobs.emplace_back(*knob, value);
  }
  return Support::yes();
}

Support read_gemm(const ProblemNumbers& numbers, int64_t at_rows, const KernelConfig& config,
                  MeasuredPlan& plan) {
  std::optional<GemmProblem> problem = GemmProblem::from(numbers);
  if (!problem) return Support::no("a number of the problem is missing, or out of range");
  if (at_rows > 0) problem->rows = at_rows;
  const std::optional<GemmConfig> gemm = gemm_config_from(config, *problem);
  if (!gemm) return Support::no(fmt::format("no GEMM is cut like this: {}", config.text()));
  plan.model = *gemm;
  return Support::yes();
}

Support read_roofline(const ProblemNumbers& numbers, int64_t at_rows, MeasuredPlan& plan) {
  std::optional<RooflineProblem> problem = RooflineProblem::from(numbers);
  if (!problem) return Support::no("a number of the problem is missing, or out of range");
  if (at_rows > 0) {
    if (Support answer = problem->move_to(at_rows); !answer) return answer;
  }
  if (problem->bytes < 0) return Support::no("the problem has fewer bytes than none");
  plan.model = *problem;
  return Support::yes();
}

}  // namespace

double MeasuredPlan::estimate(const codegen::GpuCosts& costs) const {
  if (const auto* gemm = std::get_if<GemmConfig>(&model)) return estimate_gemm(*gemm, costs);
  return estimate_roofline(std::get<RooflineProblem>(model), costs);
}

Support describe_plan(const KernelConfig& config, const ProblemNumbers& problem, int64_t at_rows,
                      MeasuredPlan& plan) {
  plan.skeleton = config.skeleton;
  const bool is_gemm =
      config.skeleton == Skeleton::kGemm || config.skeleton == Skeleton::kSkinnyGemm;
  return is_gemm ? read_gemm(problem, at_rows, config, plan)
                 : read_roofline(problem, at_rows, plan);
}

Support read_plan(const PlanLine& logged, MeasuredPlan& plan) {
  if (!std::isfinite(logged.microseconds) || logged.microseconds <= 0) {
    return Support::no("it has no time");
  }
  if (logged.at_rows < 0 || logged.at_rows > kMostRows)
    return Support::no("nobody has so many rows");
  KernelConfig config;
  if (Support answer = read_config(logged, config); !answer) return answer;
  if (logged.problem.empty()) return Support::no("it does not tell its problem in numbers");
  ProblemNumbers numbers;
  for (const auto& [name, value] : logged.problem) numbers.emplace_back(name, value);
  plan.group = logged.group;
  plan.microseconds = logged.microseconds;
  return describe_plan(config, numbers, logged.at_rows, plan);
}

}  // namespace tenon::kernels
