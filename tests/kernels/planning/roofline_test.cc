#include "kernels/planning/roofline.h"

#include <gtest/gtest.h>

#include "codegen/arch_spec.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/device/description.h"

namespace tenon::kernels {
namespace {

// Reads 4 bytes of each of 1024 elements of a row and writes as many.
constexpr std::string_view kNode = R"(graph main {
  input %x: f32[batch,rows,1024]
  %y: f32[batch,rows,1024] = Relu(%x)
  output %y
})";

Plan two_ranges(const Dim& rows) {
  return {.ranges = {{{0, 8}, {{{Skeleton::kLoop}}, {{Skeleton::kLoop}, 7}}},
                     {{9}, {{{Skeleton::kLoop}}}}},
          .lower = {},
          .rows = rows};
}

class Roofline : public testing::Test {
 protected:
  Plan planned(const Settings& settings) const {
    Plan plan = two_ranges(graph_.value(graph_.inputs()[0]).shape->at(1));
    add_roofline(graph_, graph_.node(graph_.order().front()), settings, plan);
    return plan;
  }
  const ir::Graph graph_ = ir::parse(kNode);
};

TEST_F(Roofline, BytesOfTheRangesRowsThroughTheMemoryOfAGpu) {
  Settings settings;
  settings.gpu = device::named_description("sm_90a").target();
  const codegen::RooflineCosts& costs = codegen::arch_spec("sm_90a").costs->roofline;
  const double bytes_in_a_microsecond = costs.bytes * settings.gpu->sm_count;
  const Plan plan = planned(settings);
  const auto expected = [&](double rows) {
    return costs.per_kernel + 2 * rows * 1024 * 4 / bytes_in_a_microsecond;
  };
  EXPECT_DOUBLE_EQ(plan.ranges[0].kernels[0].microseconds, expected(8));
  EXPECT_DOUBLE_EQ(plan.ranges[1].kernels[0].microseconds, expected(9));  // has no end

  // From the numbers that a log keeps, at other rows.
  std::optional<RooflineProblem> problem = RooflineProblem::from(plan.ranges[0].kernels[0].problem);
  ASSERT_TRUE(problem);
  EXPECT_TRUE(problem->move_to(20));
  EXPECT_DOUBLE_EQ(estimate_roofline(*problem, *codegen::arch_spec("sm_90a").costs), expected(20));
}

TEST_F(Roofline, OperationsCountWhereTheyTakeLongerThanBytes) {
  Settings settings;
  settings.gpu = device::named_description("sm_90a").target();
  const codegen::GpuCosts& costs = *codegen::arch_spec("sm_90a").costs;
  const Dim rows = graph_.value(graph_.inputs()[0]).shape->at(1);
  const auto microseconds = [&](const Dim& flops, ProblemNumbers* numbers = nullptr) {
    Plan plan{.ranges = {{{64, 64}, {{.config = {Skeleton::kFlashPrefill}, .flops = flops}}}},
              .lower = {},
              .rows = rows};
    add_roofline(graph_, graph_.node(graph_.order().front()), settings, plan);
    if (numbers != nullptr) *numbers = plan.ranges[0].kernels[0].problem;
    return plan.ranges[0].kernels[0].microseconds;
  };
  EXPECT_EQ(microseconds(rows), microseconds(0));
  ProblemNumbers numbers;
  EXPECT_DOUBLE_EQ(
      microseconds(rows * rows * 1'000'000, &numbers),
      costs.roofline.per_kernel + 64 * 64 * 1e6 / (costs.attention.flops * settings.gpu->sm_count));
  std::optional<RooflineProblem> problem = RooflineProblem::from(numbers);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->flops, int64_t{64} * 64 * 1'000'000);
  EXPECT_TRUE(problem->move_to(64));
  EXPECT_EQ(problem->move_to(65).reason, "how many operations other rows take is not known");
}

TEST_F(Roofline, OlderLogsTellNoOperations) {
  ProblemNumbers older = RooflineProblem{.bytes = 100, .flops = 7}.numbers();
  EXPECT_EQ(RooflineProblem::from(older)->flops, 7);
  std::erase_if(older, [](const auto& number) { return number.first == "flops"; });
  ASSERT_TRUE(RooflineProblem::from(older));
  EXPECT_EQ(RooflineProblem::from(older)->flops, 0);
  older.emplace_back("flops", -1);
  EXPECT_FALSE(RooflineProblem::from(older));
}

TEST_F(Roofline, LeavesWhatACandidateKnows) {
  Settings settings;
  settings.gpu = device::named_description("sm_90a").target();
  EXPECT_EQ(planned(settings).ranges[0].kernels[1].microseconds, 7);
}

TEST_F(Roofline, CoresOfTheHostShareTheBytes) {
  Settings one, two;
  one.host.threads = 1;
  two.host.threads = 2;
  const double alone = planned(one).ranges[0].kernels[0].microseconds;
  EXPECT_GT(alone, 0);
  EXPECT_DOUBLE_EQ(planned(two).ranges[0].kernels[0].microseconds, alone / 2);
}

}  // namespace
}  // namespace tenon::kernels
