#include "kernels/cost_fit/fit_costs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codegen/arch_spec.h"
#include "codegen/cost_factors.h"
#include "tests/kernels/cost_fit/product_samples.h"

namespace tenon::kernels {
namespace {

using codegen::GpuCosts;

const GpuCosts& table() { return *codegen::arch_spec("sm_90a").costs; }

struct Size {
  int64_t n, k;
};
constexpr Size kSizes[] = {{1024, 1024},  {4096, 4096}, {6144, 4096},  {28672, 4096},
                           {4096, 14336}, {2048, 8192}, {14336, 5120}, {512, 2048}};

PlannedKernel any_kernel() {
  const Choice choice = choice_of(product(4096, 4096), settings_of("sm_90a", false));
  return choice.parts.at(0).plan.ranges.at(0).kernels.at(0);
}

// What a tuner would have measured where the model is true with `costs`.
std::vector<MeasuredPlan> measured_with(const GpuCosts& costs) {
  std::vector<MeasuredPlan> plans;
  int64_t group = 0;
  for (const bool overlaps : {false, true}) {
    for (const Size& size : kSizes) {
      const ir::Graph graph = product(size.n, size.k);
      const Choice choice = choice_of(graph, settings_of("sm_90a", overlaps, /*told=*/24));
      for (const RangePlan& range : choice.parts.at(0).plan.ranges) {
        ++group;
        for (const PlannedKernel& kernel : range.kernels) {
          MeasuredPlan& plan = plans.emplace_back();
          EXPECT_TRUE(read_plan(logged(kernel, group, 1), plan)) << kernel.text();
          plan.microseconds = plan.estimate(costs);
        }
      }
    }
  }
  return plans;
}

TEST(CostFit, LogsHaveAllThatAnEstimateNeeds) {
  int skinny = 0, overlapped = 0;
  for (const bool overlaps : {false, true}) {
    for (const Size& size : kSizes) {
      const Choice choice = choice_of(product(size.n, size.k), settings_of("sm_90a", overlaps, 24));
      ASSERT_TRUE(choice.ok()) << choice.reason();
      for (const RangePlan& range : choice.parts[0].plan.ranges) {
        for (const PlannedKernel& kernel : range.kernels) {
          MeasuredPlan plan;
          const Support answer = read_plan(logged(kernel, 0, 1), plan);
          ASSERT_TRUE(answer) << answer.reason << ": " << kernel.text();
          EXPECT_DOUBLE_EQ(plan.estimate(table()), kernel.microseconds) << kernel.text();
          skinny += kernel.config.skeleton == Skeleton::kSkinnyGemm;
          overlapped += std::get<GemmConfig>(plan.model).problem.overlapping > 0;
        }
      }
    }
  }
  EXPECT_GT(skinny, 20);
  EXPECT_GT(overlapped, 100);
}

TEST(CostFit, TakesTheRowsThatWereMeasured) {
  PlanLine log = logged(any_kernel(), 0, 1);
  MeasuredPlan one, many;
  ASSERT_TRUE(read_plan(log, one));
  log.at_rows = 4096;
  ASSERT_TRUE(read_plan(log, many));
  EXPECT_GT(many.estimate(table()), 100 * one.estimate(table()));
}

// Constants times factors between 1/2 and 2, as if another card were there.
TEST(CostFit, FindsTheConstantsThatMadeTheTimes) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const std::vector<MeasuredPlan> plans = measured_with(with_factors(table(), seed));
    ASSERT_GT(plans.size(), 500u);
    const CostFit fit = fit_costs(table(), plans);
    EXPECT_GT(fit.before.all.median, 0.1) << "factors made no difference";
    EXPECT_LT(fit.after.all.median, 0.05);
    EXPECT_LT(fit.after.all.ninetieth, 0.05);
    EXPECT_LT(fit.after.mean_regret, 1.005);
    EXPECT_LE(fit.after.mean_regret, fit.before.mean_regret);
    EXPECT_EQ(fit.after.by_skeleton.size(), 2u);
    for (const auto& [skeleton, error] : fit.after.by_skeleton) {
      EXPECT_LT(error.median, 0.05) << skeleton;
    }
  }
}

// A tenth of the plans takes three times as long, for reasons that no model has.
TEST(CostFit, NoiseAndOutliersDoNotSpoilTheRest) {
  std::vector<MeasuredPlan> plans = measured_with(with_factors(table(), 4));
  for (size_t i = 0; i < plans.size(); ++i) {
    plans[i].microseconds *= i % 10 == 3 ? 3 : 0.97 + 0.01 * static_cast<double>(i % 7);
  }
  const CostFit fit = fit_costs(table(), plans);
  EXPECT_GT(fit.before.all.median, 0.1);
  EXPECT_LT(fit.after.all.median, 0.05);
}

TEST(CostFit, TrueConstantsStayAsTheyAre) {
  const CostFit fit = fit_costs(table(), measured_with(table()));
  EXPECT_EQ(fit.before.all.ninetieth, 0);
  EXPECT_EQ(fit.after.all.ninetieth, 0);
  EXPECT_EQ(fit.after.worst_regret, 1);
  GpuCosts known = table(), found = fit.costs;
  std::vector<double> expected, values;
  visit_costs(known, [&](std::string_view, double& value) { expected.push_back(value); });
  visit_costs(found, [&](std::string_view, double& value) { values.push_back(value); });
  EXPECT_EQ(values, expected);
}

TEST(CostFit, KeepsWhatNoPlanDependsOn) {
  MeasuredPlan plan;
  ASSERT_TRUE(read_plan(logged(any_kernel(), 0, 1), plan));
  plan.microseconds = 1.5 * plan.estimate(table());
  const CostFit fit = fit_costs(table(), {plan});
  const auto is_kept = [&](const std::string& name) {
    return std::ranges::find(fit.kept, name) != fit.kept.end();
  };
  EXPECT_TRUE(is_kept("long_cache_keys"));
  EXPECT_TRUE(is_kept("roofline.bytes"));
  EXPECT_TRUE(is_kept("overlapped_gemm.unit[3]"));
  EXPECT_EQ(fit.costs.overlapped_gemm.unit, table().overlapped_gemm.unit);
  EXPECT_FALSE(fit.fitted.empty());
  EXPECT_LT(fit.after.all.median, 0.05);
  EXPECT_EQ(fit.after.groups, 0u) << "one plan leaves nothing to choose";
}

// A thousand times as slow is no constant's fault.
TEST(CostFit, StaysWithinBounds) {
  std::vector<MeasuredPlan> plans = measured_with(table());
  for (MeasuredPlan& plan : plans) plan.microseconds *= 1000;
  CostFit fit = fit_costs(table(), plans);
  EXPECT_FALSE(fit.bounded.empty());
  std::vector<double> values;
  GpuCosts known = table();
  visit_costs(known, [&](std::string_view, double& value) { values.push_back(value); });
  size_t i = 0;
  visit_costs(fit.costs, [&](std::string_view name, double& value) {
    EXPECT_LE(std::abs(std::log(value / values[i++])), std::log(kMostCostChange) * 1.005) << name;
  });
}

TEST(CostFit, SaysWhatItCannotRead) {
  const PlanLine good = logged(any_kernel(), 0, 10);
  const auto reason = [](const PlanLine& plan) {
    MeasuredPlan read;
    return read_plan(plan, read).reason;
  };
  EXPECT_EQ(reason(good), "");
  PlanLine bad = good;
  bad.skeleton = "tcgen05";
  EXPECT_EQ(reason(bad), "unknown skeleton 'tcgen05'");
  bad = good;
  bad.knobs.emplace_back("clusters", 2);
  EXPECT_EQ(reason(bad), "unknown knob 'clusters'");
  bad = good;
  bad.problem.clear();
  EXPECT_EQ(reason(bad), "it does not tell its problem in numbers");
  bad = good;
  bad.problem.pop_back();
  EXPECT_EQ(reason(bad), "a number of the problem is missing, or out of range");
  for (const double time : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    bad = good;
    bad.microseconds = time;
    EXPECT_EQ(reason(bad), "it has no time");
  }
  for (const auto& [knob, value] : good.knobs) {
    for (const int64_t wrong : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
      bad = good;
      bad.knobs = {{knob, wrong}};
      EXPECT_TRUE(reason(bad).starts_with("no GEMM is cut like this")) << knob << " " << wrong;
    }
  }
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 40}) {
    bad = good;
    bad.at_rows = rows;
    EXPECT_EQ(reason(bad), "nobody has so many rows");
  }
}

TEST(CostFit, PrintsTheTable) {
  const std::string text = table_text(table());
  EXPECT_NE(text.find(".gemm = {.bytes = 32000"), std::string::npos) << text;
  EXPECT_NE(text.find(".dequantize_for_few = {0.165, 0.14}"), std::string::npos) << text;
  EXPECT_NE(text.find(".unit = {0.09, 0.15, 0.19, 0.227, 0.347, 0.68}"), std::string::npos) << text;
  EXPECT_NE(text.find(".roofline = {.bytes = 32000,\n        .per_kernel = 2},"), std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("    .long_cache_keys = 4096,\n")) << text;
}

}  // namespace
}  // namespace tenon::kernels
