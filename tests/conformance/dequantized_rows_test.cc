// Products whose left side is quantised, as a session runs them on a GPU: dequantised rows of 16
// bits in front of the pipelined product, of every left form with every kind of weight.
#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/device/description.h"
#include "kernels/device/specs.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr std::array kResults = {DType::kF32, DType::kF16, DType::kBF16};
constexpr int64_t kManyRows = 512;

const DotForm& weight_named(std::string_view name) {
  return *std::ranges::find(dot_forms(), name, &DotForm::name);
}

ir::Graph fused_for(const ir::Graph& graph, const Settings& settings) {
  return fuse(graph, {}, [&](const ir::Graph& part, const ir::Node& node) {
    return supports(part, node, settings);
  });
}

const ir::Node& product_of(const ir::Graph& fused) {
  for (const ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    if (node.is(ir::kScaledDot) || node.is(ir::kMergedDots)) return node;
  }
  throw std::invalid_argument("there is no product");
}

// One term of rows, or of f32 as many as its numbers have; the weight is one that has a pipeline
// with plain rows of the same result.
bool has_pipeline_with_plain_rows(const DotProblem& problem, const Settings& settings) {
  DotProblem plain = problem;
  plain.left.reset();
  std::mt19937 random(1);
  const ir::Graph graph = build_dot(plain, random);
  const Choice choice = select(graph, product_of(graph), settings);
  return choice.ok() && choice.parts.front().candidate == "pipelined";
}

// Empty where every kernel that may run kManyRows or more copies ahead.
std::string without_pipeline(const ir::Graph& fused, const Settings& settings) {
  const ir::Node& product = product_of(fused);
  const Choice choice = select(fused, product, settings);
  if (!choice.ok()) return choice.reason();
  for (const PartChoice& part : choice.parts) {
    for (const RangePlan& range : part.plan.ranges) {
      if (range.rows.last < kManyRows) continue;
      for (const PlannedKernel& kernel : range.kernels) {
        const bool is_ring = kernel.config.find(Knob::kStages).value_or(0) >= 2;
        if (!is_ring) return std::string(part.candidate) + ": " + kernel.text();
      }
    }
  }
  return "";
}

Settings settings_for(std::string_view arch) {
  Settings settings = assembled_settings();
  settings.gpu = device::named_description(arch).target();
  return settings;
}

// How many pairs of a left form and a weight there are that plain rows would have a pipeline for;
// each is asked for one result.
int expect_pipelines(const Settings& settings, std::span<const LeftForm> lefts) {
  int pairs = 0;
  for (const DType result : kResults) {
    for (size_t weight = 0; weight < dot_forms().size(); ++weight) {
      DotProblem problem{dot_forms()[weight], result, {256, 512}};
      if (!has_pipeline_with_plain_rows(problem, settings)) continue;
      for (size_t left = 0; left < lefts.size(); ++left) {
        if (kResults[(left + weight) % kResults.size()] != result) continue;
        problem.left = lefts[left];
        std::mt19937 random(1);
        const ir::Graph fused = fused_for(build_dot(problem, random), settings);
        EXPECT_EQ(without_pipeline(fused, settings), "")
            << settings.gpu->arch << " " << describe(problem);
        ++pairs;
      }
    }
  }
  return pairs;
}

TEST(DequantizedRows, EveryPairOfFormsHasAPipelineFrom512RowsOn) {
  EXPECT_GE(expect_pipelines(settings_for("sm_90a"), left_forms()), 300);
}

TEST(DequantizedRows, EveryArchitectureHasOne) {
  for (const device::Spec& spec : device::specs()) {
    const Settings settings = settings_for(spec.arch);
    if (settings.gpu->pipelines && spec.arch != "sm_90a") {
      EXPECT_GE(expect_pipelines(settings, left_forms().first(3)), 80) << spec.arch;
    }
  }
}

// Codes and scales that 16 bits hold are multiplied once, also where the model multiplies f32.
TEST(DequantizedRows, AreOneTerm) {
  const Settings settings = settings_for("sm_90a");
  for (const LeftForm& left : left_forms()) {
    const bool is_exact = !left.per_row && left.name != "fp8_block";
    for (const char* weight : {"fp8_tensor", "fp8_channel", "int8_channel", "mxfp8", "nvfp4"}) {
      DotProblem problem{weight_named(weight), DType::kF32, {256, 512}};
      problem.left = left;
      std::mt19937 random(1);
      const ir::Graph fused = fused_for(build_dot(problem, random), settings);
      const DType rows = fused.value(product_of(fused).input(0)).dtype;
      EXPECT_EQ(bit_width(rows), is_exact ? 16 : 32) << describe(problem);
    }
  }
}

// Against float64 with the tolerance of a product of plain rows: sqrt(K) 2^-22 of the magnitudes.
// Weights of integers are rounded where the model multiplies 16 bits, as without codes.
void judge(const DotProblem& problem, unsigned seed, std::initializer_list<int64_t> rows) {
  SCOPED_TRACE(describe(problem) + " seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const ir::Graph graph = build_dot(problem, random);
  const Settings settings = pipelined_settings();
  const ir::Graph fused = fused_for(graph, settings);
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  const bool rounds_weight = is_integer(problem.form.element) && problem.activation != DType::kF32;
  // Left sides that no 16 bits hold are rounded to the model's type.
  const bool rounds_rows = problem.left->per_row || problem.left->name == "fp8_block";
  const double u = unit_roundoff(problem.activation);
  for (const int64_t m : rows) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(graph, m, random);
    const ReferenceTensor sums = magnitudes(graph, inputs);
    const Tolerance exact = dot_tolerance(problem, sums);
    const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
      return exact(output, index, wanted) + (rounds_weight + rounds_rows) * u * sums.number(index);
    };
    const std::vector<ReferenceTensor> expected = reference::evaluate(graph, inputs);
    EXPECT_EQ(disagreement(run(*executable, fused, inputs), expected, tolerance), "")
        << m << " rows";
  }
}

TEST(DequantizedRows, AgreeWithTheReference) {
  constexpr std::array kWeights = {"fp8_tensor", "int8_channel", "nvfp4",        "mxfp8",
                                   "uint4_zero", "fp8_block",    "int4_n_major", "uint8_zero",
                                   "mxfp4",      "fp8_channel"};
  constexpr std::array kSizes{DotSize{130, 64}, DotSize{67, 256}, DotSize{128, 192}};
  unsigned seed = 1;
  for (const LeftForm& left : left_forms()) {
    for (const DType result : kResults) {
      DotProblem problem{weight_named(kWeights[seed % kWeights.size()]), result,
                         kSizes[seed % kSizes.size()], static_cast<DotEnd>(seed % 4)};
      if (left.name == "fp8_block" || problem.form.name == "fp8_block") problem.size.k = 256;
      problem.left = left;
      judge(problem, seed++, {1, 5, 33});
    }
  }
}

// A weight of 4 bits with scales of blocks is exact under results of f32, not rounded to the rows'
// type: values near the end of each block would show it.
TEST(DequantizedRows, WideResultsKeepWeightsExact) {
  for (const char* name : {"int4_k_major", "uint4_large_zero", "uint8_block_zero", "nbits4_zero"}) {
    DotProblem problem{weight_named(name), DType::kF32, {130, 256}};
    problem.left = left_forms().front();
    judge(problem, 7, {1, 16, 40});
  }
}

TEST(DequantizedRows, PlainRowsOf16BitsUnderWideResults) {
  unsigned seed = 1;
  for (const DotForm& form : dot_forms()) {
    for (const DType rows : {DType::kF16, DType::kBF16}) {
      if (bit_width(form.element) > 8 || is_floating(form.zero)) continue;
      DotProblem problem{form, DType::kF32, {130, 256}, static_cast<DotEnd>(seed % 4)};
      problem.rows = rows;
      std::mt19937 random(seed++);
      const ir::Graph graph = build_dot(problem, random);
      const Settings settings = pipelined_settings();
      const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
      for (const int64_t m : {1, 9, 20}) {
        const std::vector<ReferenceTensor> inputs = dot_inputs(graph, m, random);
        EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                               dot_tolerance(problem, magnitudes(graph, inputs))),
                  "")
            << describe(problem) << " " << m << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
