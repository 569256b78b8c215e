#include "codegen/cost_factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/target.h"

namespace tenon::codegen {
namespace {

std::vector<double> values(GpuCosts costs) {
  std::vector<double> values;
  visit_costs(costs, [&](std::string_view, double& value) { values.push_back(value); });
  return values;
}

TEST(CostFactors, EveryConstantHasAName) {
  GpuCosts costs = *arch_spec("sm_90a").costs;
  std::set<std::string> names;
  visit_costs(costs, [&](std::string_view name, double& value) {
    EXPECT_TRUE(names.emplace(name).second) << name << " stands twice";
    EXPECT_GT(value, 0) << name;
  });
  const size_t doubles = (sizeof(GpuCosts) - sizeof(CostSource)) / sizeof(double);
  EXPECT_EQ(names.size(), doubles) << "a constant is left out of visit_costs";
}

TEST(CostFactors, AreSpreadBetweenAHalfAndTwo) {
  double logs = 0, least = 2, most = 0.5;
  constexpr int kCount = 4000;
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    const double factor = cost_factor(seed, "gemm.bytes");
    logs += std::log2(factor);
    least = std::min(least, factor);
    most = std::max(most, factor);
  }
  EXPECT_GE(least, 0.5);
  EXPECT_LE(most, 2);
  EXPECT_LT(least, 0.51);
  EXPECT_GT(most, 1.96);
  EXPECT_LT(std::abs(logs / kCount), 0.05);  // six standard deviations
}

// The same on every machine and in every build.
TEST(CostFactors, DependOnSeedAndNameAlone) {
  EXPECT_NEAR(cost_factor(1, "gemm.bytes"), 0.667717611376743, 1e-12);
  EXPECT_NEAR(cost_factor(2, "roofline.bytes"), 0.957776320600944, 1e-12);
  GpuTarget hopper, ampere;
  ampere.arch = "sm_80";
  hopper.cost_seed = ampere.cost_seed = 5;
  const double factor = cost_factor(5, "gemm.product");
  EXPECT_EQ(costs_of(hopper).gemm.product, arch_spec("sm_90a").costs->gemm.product * factor);
  EXPECT_EQ(costs_of(ampere).gemm.product, arch_spec("sm_80").costs->gemm.product * factor);
}

TEST(CostFactors, NoSeedLeavesTheTable) {
  EXPECT_EQ(&costs_of(GpuTarget{}), arch_spec("sm_90a").costs);
  GpuTarget gpu;
  gpu.cost_seed = 0;
  EXPECT_NE(values(costs_of(gpu)), values(costs_of(GpuTarget{})));
}

TEST(CostFactors, TheEnvironmentNamesASeed) {
  unsetenv("TENON_COST_FACTORS");
  EXPECT_EQ(cost_seed_of_environment(), std::nullopt);
  setenv("TENON_COST_FACTORS", "18446744073709551615", 1);
  EXPECT_EQ(cost_seed_of_environment(), ~uint64_t{0});
  for (const char* wrong : {"-1", "1.5", "seed", "1 ", "18446744073709551616"}) {
    setenv("TENON_COST_FACTORS", wrong, 1);
    EXPECT_THROW(cost_seed_of_environment(), UserError) << wrong;
  }
  unsetenv("TENON_COST_FACTORS");
}

}  // namespace
}  // namespace tenon::codegen
