// Costs that are wrong by up to two times change what is chosen, never whether it is valid.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "codegen/arch_spec.h"
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

// By the true costs.
double microseconds_of(const PlannedKernel& kernel) {
  MeasuredPlan plan;
  const Support answer = read_plan(logged(kernel, 0, 1), plan);
  EXPECT_TRUE(answer) << answer.reason << ": " << kernel.text();
  return plan.estimate(*codegen::arch_spec("sm_90a").costs);
}

// The best of the configs that are listed for each range of rows.
std::vector<double> best_times(const ir::Graph& graph, const Settings& settings) {
  std::vector<double> times;
  const Choice choice = choice_of(graph, settings);
  for (const RangePlan& range : choice.parts.at(0).plan.ranges) {
    std::vector<double> all;
    for (const PlannedKernel& kernel : range.kernels) all.push_back(microseconds_of(kernel));
    times.push_back(*std::ranges::min_element(all));
  }
  return times;
}

struct Loss {
  double mean = 0;     // geometric, over the best config of all
  double share_5 = 0;  // of ranges that lose more than 5 %
};

// What is lost where a tuner measures eight configs, chosen by wrong costs.
Loss loss_of(bool shortlist) {
  constexpr int kMeasured = 8, kAll = 5000;
  constexpr int64_t kSizes[][2] = {{4096, 4096}, {28672, 4096}, {4096, 14336}, {1024, 8192},
                                   {896, 896},   {9728, 896},   {896, 4864},   {3072, 3072},
                                   {1352, 1024}, {200, 9984}};
  double logs = 0, over = 0, count = 0;
  for (const auto& [n, k] : kSizes) {
    const ir::Graph graph = product(n, k);
    for (const bool overlaps : {false, true}) {
      const std::vector<double> best = best_times(graph, settings_of("sm_90a", overlaps, kAll));
      Settings settings = settings_of("sm_90a", overlaps, kMeasured);
      settings.tuning.lists_all = shortlist;
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        settings.gpu->cost_seed = seed;
        const std::vector<double> measured = best_times(graph, settings);
        for (size_t i = 0; i < best.size(); ++i) {
          logs += std::log(measured.at(i) / best[i]);
          over += measured[i] > 1.05 * best[i] ? 1 : 0;
          ++count;
        }
      }
    }
  }
  return {std::exp(logs / count), over / count};
}

TEST(WrongCosts, AShortlistHoldsAGoodConfig) {
  const Loss by_estimate = loss_of(false), shortlist = loss_of(true);
  std::printf(
      "lost to the best config: %.2f %% by estimate (%.1f %% of ranges more than 5 %%), "
      "%.2f %% by the shortlist (%.1f %%)\n",
      100 * (by_estimate.mean - 1), 100 * by_estimate.share_5, 100 * (shortlist.mean - 1),
      100 * shortlist.share_5);
  EXPECT_GT(by_estimate.mean, 1.01);
  EXPECT_GT(by_estimate.share_5, 0.04);
  EXPECT_LT(shortlist.mean, 1.005);
  EXPECT_LT(shortlist.share_5, 0.02);
}

// Wherever it stands by estimate, what runs untuned is measured.
TEST(WrongCosts, AShortlistBeginsWithTheEstimate) {
  const ir::Graph graph = product(4096, 4096);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Settings settings = settings_of("sm_90a", seed % 2 == 0, 8);
    settings.gpu->cost_seed = seed;
    const Choice by_estimate = choice_of(graph, settings);
    settings.tuning.lists_all = true;
    const Choice shortlist = choice_of(graph, settings);
    for (size_t i = 0; i < by_estimate.parts.at(0).plan.ranges.size(); ++i) {
      const auto& kernels = shortlist.parts.at(0).plan.ranges.at(i).kernels;
      EXPECT_EQ(kernels[0].config, by_estimate.parts[0].plan.ranges[i].kernels[0].config);
      std::set<std::string> texts;
      for (const PlannedKernel& kernel : kernels) texts.insert(kernel.config.text());
      EXPECT_EQ(texts.size(), kernels.size()) << "a config is listed twice";
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
