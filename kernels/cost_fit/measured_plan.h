// A plan that a tuner measured, in the words of the cost model: its estimate can be made again with
// any costs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/support.h"
#include "codegen/gpu_costs.h"
#include "kernels/llvm/scaled_dot/gemm_config.h"
#include "kernels/planning/roofline.h"

namespace tenon::kernels {

struct MeasuredPlan {
  int64_t group = 0;  // those of one group run the same rows of the same fusion
  Skeleton skeleton{};
  double microseconds = 0;
  std::variant<GemmConfig, RooflineProblem> model;

  double estimate(const codegen::GpuCosts& costs) const;
};

// As a line of a log has it.
struct PlanLine {
  int64_t group = 0;
  std::string skeleton;
  std::vector<std::pair<std::string, int64_t>> knobs, problem;
  int64_t at_rows = 0;  // where it was measured; 0: where it was estimated
  double microseconds = 0;
};

// Put `plan` into words of the model, or say why that has none for it.
Support read_plan(const PlanLine& logged, MeasuredPlan& plan);
Support describe_plan(const KernelConfig& config, const ProblemNumbers& problem, int64_t at_rows,
                      MeasuredPlan& plan);

}  // namespace tenon::kernels
