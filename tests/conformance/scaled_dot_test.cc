// Every candidate for a dot on every form that it supports, against float64 over the same operands.
#include <cmath>
#include <iostream>
#include <set>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/dots.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr std::array<int64_t, 6> kRows{0, 1, 2, 7, 16, 33};
constexpr std::array kSizes{DotSize{1, 32},   DotSize{5, 48},   DotSize{16, 64}, DotSize{31, 160},
                            DotSize{64, 256}, DotSize{67, 200}, DotSize{130, 33}};

// A form whose blocks cannot hold this K is no problem at all.
bool fits(const DotForm& form, const DotSize& size) {
  if (form.as_bytes && is_floating(form.element)) return size.k % 2 == 0;
  if (form.block == 0 || form.as_bytes) return true;
  return size.k % form.block == 0 || form.k_last;
}

struct Coverage {
  std::set<std::string> candidates, forms;
  int runs = 0;
};

void judge(const DotProblem& problem, unsigned seed, Coverage& coverage,
           std::span<const int64_t> row_counts = kRows) {
  std::mt19937 random(seed);
  const ir::Graph graph = build_dot(problem, random);
  const ir::Node& node = graph.node(graph.order().front());
  for (const Candidate& candidate : candidates(ir::kScaledDot, conformance_settings())) {
    Settings settings = conformance_settings();
    settings.tuning.candidate = candidate.name;
    SCOPED_TRACE(std::string(candidate.name) + ": " + describe(problem) + " seed " +
                 std::to_string(seed));
    if (!select(graph, node, settings).ok()) continue;
    coverage.candidates.emplace(candidate.name);
    coverage.forms.emplace(problem.form.name);
    const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
    // Integers times their scale are rounded as DequantizeLinear does it; the reference is not.
    const bool rounds_weights = candidate.name == "pipelined" && is_integer(problem.form.element);
    const double weight_error = rounds_weights ? unit_roundoff(problem.activation) : 0;
    for (const int64_t rows : row_counts) {
      const std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
      const std::vector<ReferenceTensor> expected = reference::evaluate(graph, inputs);
      const ReferenceTensor sums = magnitudes(graph, inputs);
      const Tolerance exact = dot_tolerance(problem, sums);
      const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
        return exact(output, index, wanted) + weight_error * sums.number(index);
      };
      EXPECT_EQ(disagreement(run(*executable, graph, inputs), expected, tolerance), "")
          << rows << " rows";
      ++coverage.runs;
    }
  }
}

TEST(ConformanceScaledDot, EveryCandidateOnEveryForm) {
  Coverage coverage;
  unsigned seed = 1;
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF32, DType::kF16, DType::kBF16}) {
      // Each pair of form and type meets some of the sizes and ends; all meet all over the table.
      // Kernels for a GPU take longer to compile.
      const unsigned problems =
          conformance_settings().gpu && !conformance_settings().emulate ? 1 : 3;
      for (unsigned i = 0; i < problems; ++i, ++seed) {
        DotProblem problem{form, activation, kSizes[(seed * 3 + i) % kSizes.size()],
                           static_cast<DotEnd>(seed % 4), seed % 5 != 0};
        if (fits(form, problem.size)) judge(problem, seed, coverage);
      }
    }
  }
  std::cout << coverage.runs << " runs\n";
  for (const Candidate& candidate : candidates(ir::kScaledDot, conformance_settings())) {
    if (candidate.name == "int8") continue;                    // not exact: the next test
    if (candidate.name == "cudnn_block_scaled_dot") continue;  // of Blackwell: tests/kernels/cudnn
    EXPECT_TRUE(coverage.candidates.contains(std::string(candidate.name)))
        << candidate.name << " supports none of the problems";
  }
  for (const DotForm& form : dot_forms()) {
    EXPECT_TRUE(coverage.forms.contains(std::string(form.name))) << "nobody supports " << form.name;
  }
}

// Rows at a distance of whole pages are laid out anew, K has several blocks, tasks several panels.
TEST(ConformanceScaledDot, RowsAPageApart) {
  constexpr std::array<int64_t, 4> rows{1, 3, 4, 9};
  Coverage coverage;
  for (const DotForm& form : dot_forms()) {
    const bool is_int4 = form.element == DType::kU4 && form.zero == DType::kUndefined;
    if (form.element != DType::kF32 && form.element != DType::kF4E2M1 && !is_int4) continue;
    judge({form, DType::kF32, {258, 1024}, DotEnd::kBias, true}, 7, coverage, rows);
  }
  EXPECT_GE(coverage.runs, 12);
}

// More rows than one task takes: whole blocks of them, one more, and blocks that cannot be even.
TEST(ConformanceScaledDot, RowsOfSeveralTasks) {
  constexpr std::array<int64_t, 5> rows{48, 49, 96, 193, 385};
  Coverage coverage;
  for (const DotForm& form : dot_forms()) {
    if (form.element != DType::kF32 && form.element != DType::kF4E2M1) continue;
    judge({form, DType::kF32, {40, 64}, DotEnd::kBias, true}, 11, coverage, rows);
    judge({form, DType::kF32, {264, 32}, DotEnd::kBias, true}, 12, coverage, rows);
  }
  EXPECT_GE(coverage.runs, 20);
}

Settings int8_settings() {
  Settings settings = conformance_settings();
  settings.precision = Precision::kInt8;
  settings.tuning.candidate = "int8";
  return settings;
}

// |a| becomes half a step of int8 under the largest |a| of its row: the most that rounding takes
// away.
ReferenceTensor int8_steps(const ir::Graph& graph, const std::vector<ReferenceTensor>& inputs) {
  std::vector<ReferenceTensor> steps = inputs;
  const int64_t k = inputs[0].dims[1];
  for (int64_t row = 0; row < inputs[0].dims[0]; ++row) {
    double largest = 0;
    for (int64_t i = 0; i < k; ++i)
      largest = std::max(largest, std::fabs(inputs[0].number(row * k + i)));
    for (int64_t i = 0; i < k; ++i) steps[0].set(row * k + i, largest / 254);
  }
  return magnitudes(graph, steps);
}

// Whole numbers up to 127, and 127 among every eight: rounding to int8 takes nothing away.
std::vector<ReferenceTensor> whole_inputs(const ir::Graph& graph, int64_t rows,
                                          std::mt19937& random) {
  std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
  std::uniform_int_distribution<int> code(-127, 127);
  for (int64_t i = 0; i < inputs[0].elements(); ++i) {
    inputs[0].set(i, i % 8 == 3 ? 127 : code(random));
  }
  return inputs;
}

TEST(ConformanceScaledDot, Int8ActivationsStayWithinTheirStep) {
  const Settings settings = int8_settings();
  int built = 0;
  for (const DotForm& form : dot_forms()) {
    for (const DotSize& size : kSizes) {
      const DotProblem problem{form, DType::kF32, size, DotEnd::kBias, true};
      if (!fits(form, size)) continue;
      SCOPED_TRACE(describe(problem));
      std::mt19937 random(5);
      const ir::Graph graph = build_dot(problem, random);
      if (!select(graph, graph.node(graph.order().front()), settings).ok()) continue;
      ++built;
      const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
      for (const int64_t rows : kRows) {
        const std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
        const Tolerance exact = dot_tolerance(problem, magnitudes(graph, inputs));
        const ReferenceTensor steps = int8_steps(graph, inputs);
        const Tolerance tolerance = [&](size_t output, int64_t index, double expected) {
          return 1.01 * steps.number(index) + exact(output, index, expected);
        };
        EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                               tolerance),
                  "")
            << rows << " rows";
      }
      for (const int64_t rows : {1, 2, 4, 20}) {
        const std::vector<ReferenceTensor> inputs = whole_inputs(graph, rows, random);
        const Tolerance exact = dot_tolerance(problem, magnitudes(graph, inputs));
        const ReferenceTensor steps = int8_steps(graph, inputs);
        // Sums of NVFP4's blocks are scaled in chains, at a hundredth of what rounding may cost.
        const double chained = form.element == DType::kF4E2M1 && form.block == 16 ? 0.01 : 0;
        const Tolerance tolerance = [&](size_t output, int64_t index, double expected) {
          return chained * steps.number(index) + exact(output, index, expected);
        };
        EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                               tolerance),
                  "")
            << rows << " rows of whole numbers";
      }
    }
  }
  if (built == 0) GTEST_SKIP() << "this machine has no int8 dot instructions";
}

// Scales that int8 products might not survive leave the weight to the exact kernel.
TEST(ConformanceScaledDot, Int8ActivationsRefuseHugeScales) {
  int asked = 0;
  for (const DotForm& form : dot_forms()) {
    const DotProblem problem{form, DType::kF32, {16, 64}, DotEnd::kPlain, true};
    if (form.as_bytes || !fits(form, problem.size)) continue;
    if (form.scale != DType::kF32 && form.scale != DType::kF8E8M0) continue;
    SCOPED_TRACE(std::string(form.name));
    std::mt19937 random(3);
    ir::Graph graph = build_dot(problem, random);
    const ir::Node& node = graph.node(graph.order().front());
    if (!select(graph, node, int8_settings()).ok()) continue;
    ++asked;
    ir::Value& scale = graph.value(graph.find("scale"));
    ReferenceTensor huge = ReferenceTensor::from(*scale.constant);
    huge.set(huge.elements() - 1, std::ldexp(1, 99));
    scale.constant = ir::Tensor::copy(huge.dtype, huge.dims, huge.bytes());
    EXPECT_TRUE(select(graph, node, int8_settings()).ok());
    huge.set(huge.elements() - 1, std::ldexp(1, 100));
    scale.constant = ir::Tensor::copy(huge.dtype, huge.dims, huge.bytes());
    EXPECT_FALSE(select(graph, node, int8_settings()).ok());
  }
  if (asked == 0) GTEST_SKIP() << "this machine has no int8 dot instructions";
}

// A scale of NaN, infinity or an end of e8m0 in one place.
ReferenceTensor with_extremes(ReferenceTensor scale) {
  const int64_t last = scale.elements() - 1;
  scale.set(last / 2, NAN);
  scale.set(last, scale.dtype == DType::kF8E8M0     ? std::ldexp(1, -127)
                  : scale.dtype == DType::kF8E4M3FN ? 448
                                                    : INFINITY);
  if (scale.dtype == DType::kF8E8M0) scale.set(last - 1, std::ldexp(1, 100));
  return scale;
}

// Where a dot is not finite, NaN and infinity are one: which of them comes out hangs on the order
// of the sum.
void merge_non_finite(std::vector<ReferenceTensor>& tensors) {
  for (ReferenceTensor& tensor : tensors) {
    for (double& real : tensor.reals) real = std::isfinite(real) ? real : NAN;
  }
}

TEST(ConformanceScaledDot, ExtremeScales) {
  for (const DotForm& form : dot_forms()) {
    const DotProblem problem{form, DType::kF32, {16, 64}, DotEnd::kPlain, true};
    if (form.scale == DType::kUndefined || form.as_bytes || !fits(form, problem.size)) continue;
    SCOPED_TRACE(std::string(form.name));
    std::mt19937 random(99);
    ir::Graph graph = build_dot(problem, random);
    ir::Value& scale = graph.value(graph.find("scale"));
    const ReferenceTensor extreme = with_extremes(ReferenceTensor::from(*scale.constant));
    const std::vector<std::byte> bytes = extreme.bytes();
    scale.constant = ir::Tensor::copy(extreme.dtype, extreme.dims, bytes);
    const std::unique_ptr<Executable> executable = build_for_test(graph, conformance_settings());
    for (const int64_t rows : {1, 5}) {
      const std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
      std::vector<ReferenceTensor> expected = reference::evaluate(graph, inputs);
      std::vector<ReferenceTensor> results = run(*executable, graph, inputs);
      merge_non_finite(expected);
      merge_non_finite(results);
      const Tolerance tolerance = dot_tolerance(problem, magnitudes(graph, inputs));
      EXPECT_EQ(disagreement(results, expected, tolerance), "") << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
