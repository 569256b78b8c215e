// One row by the kernel that multiplies it as digits, for every form of weight and both kinds of
// digits: those of the CPU at hand compiled, the others interpreted.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "codegen/target.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

// Enough weights for the kernel to be chosen; n is no whole panel.
constexpr std::array kSizes{DotSize{146, 512}, DotSize{67, 1104}};

using Fill = std::function<double(int64_t k, std::mt19937& random)>;

struct Row {
  const char* name;
  Fill at;
};

double normal(std::mt19937& random) { return std::normal_distribution<double>()(random); }

const std::vector<Row>& rows() {
  static const auto one_in = [](int64_t k, int64_t every, double value, std::mt19937& random) {
    return k % every == every / 2 ? value : normal(random);
  };
  static const std::vector<Row> kRows = {
      {"normal", [](int64_t, std::mt19937& random) { return normal(random); }},
      {"outliers", [](int64_t k, std::mt19937& random) { return one_in(k, 37, 3e4, random); }},
      {"wide",
       [](int64_t, std::mt19937& random) {
         return std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
       }},
      {"tiny", [](int64_t, std::mt19937& random) { return 1e-37 * normal(random); }},
      {"huge", [](int64_t, std::mt19937& random) { return 1e30 * normal(random); }},
      {"powers of two", [](int64_t k, std::mt19937&) { return std::ldexp(1, 3 - k % 9); }},
      {"zero", [](int64_t, std::mt19937&) { return 0.0; }},
      {"zero but one", [](int64_t k, std::mt19937&) { return k == 77 ? -1.5 : 0.0; }},
      {"an infinity",
       [](int64_t k, std::mt19937& random) { return one_in(k, 400, INFINITY, random); }},
      {"a NaN", [](int64_t k, std::mt19937& random) { return one_in(k, 400, NAN, random); }},
  };
  return kRows;
}

// What a digit leaves of each element: 2^-30 of the largest of its unit, here of the row.
ReferenceTensor steps(const ir::Graph& graph, const std::vector<ReferenceTensor>& inputs) {
  std::vector<ReferenceTensor> small = inputs;
  double largest = 0x1p-96;
  for (int64_t i = 0; i < inputs[0].elements(); ++i) {
    largest = std::max(largest, std::fabs(inputs[0].number(i)));
  }
  for (int64_t i = 0; i < inputs[0].elements(); ++i) small[0].set(i, std::ldexp(largest, -30));
  return magnitudes(graph, small);
}

bool has_digits(const ir::Graph& graph, const Settings& settings) {
  const ir::Node& node = graph.node(graph.order().front());
  const Choice selection = select(graph, node, settings);
  if (!selection.ok()) return false;
  for (const Launch& launch : selection.lower().launches) {
    if (launch.kernel.name == "dot_row_digits") return true;
  }
  return false;
}

void judge(const DotProblem& problem, const ir::Graph& graph, Executable& executable) {
  std::mt19937 random(7);
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    std::vector<ReferenceTensor> inputs = dot_inputs(graph, 1, random);
    for (int64_t i = 0; i < problem.size.k; ++i) inputs[0].set(i, row.at(i, random));
    const Tolerance exact = dot_tolerance(problem, magnitudes(graph, inputs));
    const ReferenceTensor step = steps(graph, inputs);
    const Tolerance tolerance = [&](size_t output, int64_t index, double expected) {
      return exact(output, index, expected) + step.number(index);
    };
    EXPECT_EQ(
        disagreement(run(executable, graph, inputs), reference::evaluate(graph, inputs), tolerance),
        "");
  }
}

// How many forms had a kernel of digits.
int judge_forms(const Settings& settings, size_t every) {
  int found = 0;
  for (size_t i = 0; i < dot_forms().size(); i += every) {
    const DotForm& form = dot_forms()[i];
    for (const DotSize& size : kSizes) {
      if (form.block != 0 && size.k % form.block != 0) continue;
      const DotProblem problem{form, DType::kF32, size, DotEnd::kBias, true};
      SCOPED_TRACE(describe(problem));
      std::mt19937 random(11);
      const ir::Graph graph = build_dot(problem, random);
      if (!has_digits(graph, settings)) continue;
      ++found;
      judge(problem, graph, *build_for_test(graph, settings));
    }
  }
  return found;
}

TEST(ConformanceDigitRow, EveryFormOnThisCpu) {
  const Settings settings = conformance_settings();
  if (settings.gpu) GTEST_SKIP() << "a kernel of hosts";
  const int found = judge_forms(settings, 1);
  const codegen::HostTarget& host = settings.host;
  const bool expected = host.has("dotprod") || host.has("avx512vnni") || host.has("avxvnni");
  if (!expected) GTEST_SKIP() << "this CPU has neither AVX2 nor dotprod that are worth it";
  EXPECT_GT(found, 10);
}

TEST(ConformanceDigitRow, SignedAndUnsignedDigits) {
  if (conformance_settings().gpu) GTEST_SKIP() << "a kernel of hosts";
  for (const char* name : {"aarch64-dotprod", "x86_64-avx512vnni"}) {
    SCOPED_TRACE(name);
    Settings settings;
    settings.host = codegen::host_target(name);
    settings.emulate = true;
    EXPECT_GT(judge_forms(settings, 3), 2);
  }
}

}  // namespace
}  // namespace tenon::kernels
