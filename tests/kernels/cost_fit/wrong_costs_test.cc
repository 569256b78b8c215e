// Costs that are wrong by up to two times change what is chosen, never whether it is valid.
#include <gtest/gtest.h>

#include <set>

#include "codegen/cost_factors.h"
#include "tests/kernels/cost_fit/product_samples.h"

namespace tenon::kernels {
namespace {

constexpr uint64_t kSeeds = 200;

// Ranges without gaps, each with kernels that fit the card, in the order of their times.
void expect_valid(const Choice& choice, const codegen::GpuTarget& gpu) {
  ASSERT_EQ(choice.parts.size(), 1u) << choice.reason();
  int64_t next = 0;
  for (const RangePlan& range : choice.parts[0].plan.ranges) {
    EXPECT_EQ(range.rows.first, next);
    next = range.rows.last == RowRange::kNoLimit ? range.rows.last : range.rows.last + 1;
    ASSERT_FALSE(range.kernels.empty());
    for (const PlannedKernel& kernel : range.kernels) {
      EXPECT_GT(kernel.microseconds, 0);
      MeasuredPlan plan;
      const Support answer = read_plan(logged(kernel, 0, 1), plan);
      ASSERT_TRUE(answer) << answer.reason << ": " << kernel.text();
      const auto& config = std::get<GemmConfig>(plan.model);
      const int64_t stage = int64_t{config.units} * config.problem.unit_words * 4;
      EXPECT_LE(config.stages * stage * config.ctas_per_sm, gpu.shared_bytes) << kernel.text();
      EXPECT_EQ(config.problem.steps() % config.units, 0) << kernel.text();
    }
  }
  EXPECT_EQ(next, RowRange::kNoLimit);
}

TEST(WrongCosts, PlansStayValidAndChoicesChange) {
  struct Size {
    int64_t n, k;
  };
  for (const char* arch : {"sm_90a", "sm_80"}) {
    for (const Size& size : {Size{4096, 4096}, Size{28672, 4096}, Size{1000, 14336}}) {
      const ir::Graph graph = product(size.n, size.k);
      for (const bool overlaps : {false, true}) {
        Settings settings = settings_of(arch, overlaps);
        std::vector<std::set<std::string>> chosen;
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
          settings.gpu->cost_seed = seed;
          const Choice choice = choice_of(graph, settings);
          expect_valid(choice, *settings.gpu);
          if (testing::Test::HasFailure()) FAIL() << arch << ", seed " << seed;
          const auto& ranges = choice.parts[0].plan.ranges;
          chosen.resize(ranges.size());
          for (size_t i = 0; i < ranges.size(); ++i) {
            chosen[i].insert(ranges[i].kernels.front().config.text());
          }
        }
        const auto changes = std::ranges::count_if(
            chosen, [](const std::set<std::string>& texts) { return texts.size() > 1; });
        EXPECT_GE(changes, 2) << arch << " " << size.n << " x " << size.k;
      }
    }
  }
}

TEST(WrongCosts, ASeedAlwaysChoosesTheSame) {
  const ir::Graph graph = product(4096, 4096);
  Settings settings = settings_of("sm_90a", false);
  settings.gpu->cost_seed = 7;
  const Choice first = choice_of(graph, settings), second = choice_of(graph, settings);
  const auto& ranges = first.parts.at(0).plan.ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(ranges[i].kernels[0].text(), second.parts[0].plan.ranges[i].kernels[0].text());
  }
}

}  // namespace
}  // namespace tenon::kernels
