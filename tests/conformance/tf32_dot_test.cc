// Products of f32 with plain f32 weights where tf32 was asked for: both operands are rounded to 10
// bits of mantissa, and nothing else is.
#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

const DotForm& form_named(std::string_view name) {
  return *std::ranges::find(dot_forms(), name, &DotForm::name);
}

Settings asking_for_tf32() {
  Settings settings = pipelined_settings();
  settings.precision = Precision::kTf32;
  return settings;
}

std::string chosen(const DotProblem& problem, const Settings& settings) {
  std::mt19937 random(1);
  const ir::Graph graph = build_dot(problem, random);
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  return choice.ok() ? choice.chosen() : choice.reason();
}

// Against float64 of the rounded operands: what is left is the sum of K products in f32, for which
// sqrt(K) 2^-22 of the sum of their magnitudes is allowed, as of every other dot (dot_tolerance).
// Rounding an operand otherwise, or not at all, is off by up to 2^-11 of a product: more than that
// for K up to some thousand.
void judge(const DotProblem& problem, unsigned seed, const Settings& settings) {
  std::mt19937 random(seed);
  const ir::Graph graph = build_dot(problem, random), rounded = in_tf32(graph);
  SCOPED_TRACE(describe(problem) + " seed " + std::to_string(seed));
  const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
  for (const int64_t m : {1, 7, 64, 200}) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(graph, m, random);
    const std::vector<ReferenceTensor> rounded_inputs = in_tf32(inputs);
    const Tolerance tolerance = dot_tolerance(problem, magnitudes(rounded, rounded_inputs));
    EXPECT_EQ(disagreement(run(*executable, graph, inputs),
                           reference::evaluate(rounded, rounded_inputs), tolerance),
              "")
        << m << " rows";
  }
}

TEST(Tf32Dot, EndsAndTails) {
  constexpr std::array kSizes{DotSize{131, 200}, DotSize{67, 132}, DotSize{257, 96},
                              DotSize{128, 1024}};
  unsigned seed = 1;
  for (const char* name : {"f32", "f32_transposed"}) {
    for (const DotSize& size : kSizes) {
      const DotProblem problem{form_named(name), DType::kF32, size, static_cast<DotEnd>(seed % 4)};
      EXPECT_EQ(chosen(problem, asking_for_tf32()), "pipelined") << describe(problem);
      judge(problem, seed++, asking_for_tf32());
    }
  }
}

// Rows that are no multiple of 16 bytes have no pipeline, as before.
TEST(Tf32Dot, OddRowsStayExact) {
  const DotProblem problem{form_named("f32"), DType::kF32, {40, 130}, DotEnd::kPlain};
  EXPECT_EQ(chosen(problem, asking_for_tf32()), "mma_strided");
  EXPECT_EQ(chosen(problem, asking_for_tf32()), chosen(problem, pipelined_settings()));
}

// Nobody asked: as exact as float64 of the operands themselves, by the kernels that were there.
TEST(Tf32Dot, OnlyWhereItWasAskedFor) {
  const DotProblem problem{form_named("f32"), DType::kF32, {131, 200}, DotEnd::kBias};
  for (const Precision precision : {Precision::kExact, Precision::kInt8}) {
    Settings settings = pipelined_settings();
    settings.precision = precision;
    EXPECT_EQ(chosen(problem, settings), "mma_strided");
  }
  std::mt19937 random(5);
  const ir::Graph graph = build_dot(problem, random);
  const std::vector<ReferenceTensor> inputs = dot_inputs(graph, 64, random);
  const std::vector<ReferenceTensor> exact = reference::evaluate(graph, inputs);
  const Tolerance tolerance = dot_tolerance(problem, magnitudes(graph, inputs));
  const auto judged = [&](const Settings& settings) {
    return disagreement(run(*build_for_test(graph, settings), graph, inputs), exact, tolerance);
  };
  EXPECT_EQ(judged(pipelined_settings()), "");
  EXPECT_NE(judged(asking_for_tf32()), "");
}

// Other operands than f32 have the kernels and the exactness that they had.
TEST(Tf32Dot, OtherProductsAreAsTheyWere) {
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF16, DType::kBF16, DType::kF32}) {
      if (form.element == DType::kF32 && activation == DType::kF32) continue;
      const DotProblem problem{form, activation, {130, 64}, DotEnd::kPlain};
      EXPECT_EQ(chosen(problem, asking_for_tf32()), chosen(problem, pipelined_settings()))
          << describe(problem);
    }
  }
}

TEST(Tf32Dot, ConfigsSayHowMuchKAStageHas) {
  std::mt19937 random(1);
  const DotProblem problem{form_named("f32"), DType::kF32, {256, 1024}, DotEnd::kPlain};
  const ir::Graph graph = build_dot(problem, random, /*rows=*/200);
  const ir::Node& node = graph.node(graph.order().front());
  const Settings settings = asking_for_tf32();
  const Lowered lowered = select(graph, node, settings).lower();
  ASSERT_EQ(lowered.configs.size(), 1u);
  const std::string config = lowered.configs.front().chosen.text();
  const bool has_units_of_32 = config.find("K/stage 32,") != std::string::npos ||
                               config.find("K/stage 64,") != std::string::npos ||
                               config.find("K/stage 128,") != std::string::npos;
  EXPECT_TRUE(has_units_of_32) << config;
}

}  // namespace
}  // namespace tenon::kernels
