// The pipelined products of packed weights, every format, run by the interpreter with the tiles and
// packing of a GPU, against float64.
#include <set>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

Settings pipelined_settings() {
  Settings settings = conformance_settings();
  if (!settings.gpu) {
    settings.gpu = codegen::GpuTarget{};
    settings.gpu->multiprocessors = 6;
    settings.gpu->pipelines = true;
    settings.emulate = true;
  }
  settings.only_candidate = "pipelined";
  return settings;
}

// How many Runs were judged; 0: the candidate does not take the problem.
int judge(const DotProblem& problem, unsigned seed, std::initializer_list<int64_t> rows) {
  std::mt19937 random(seed);
  const ir::Graph graph = build_dot(problem, random);
  const ir::Node& node = graph.node(graph.order().front());
  const Settings settings = pipelined_settings();
  SCOPED_TRACE(describe(problem) + " seed " + std::to_string(seed));
  if (!select(graph, node, settings).chosen) return 0;
  const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
  for (const int64_t m : rows) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(graph, m, random);
    const std::vector<ReferenceTensor> expected = reference::evaluate(graph, inputs);
    const ReferenceTensor sums = magnitudes(graph, inputs);
    const Tolerance exact = dot_tolerance(problem, sums);
    // Integers times their scale are rounded to the type of the activations, as DequantizeLinear
    // does; the reference is not.
    const double u = is_integer(problem.form.element) ? unit_roundoff(problem.activation) : 0;
    const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
      return exact(output, index, wanted) + u * sums.number(index);
    };
    EXPECT_EQ(disagreement(run(*executable, graph, inputs), expected, tolerance), "")
        << m << " rows";
  }
  return static_cast<int>(rows.size());
}

TEST(PipelinedDot, EveryFormat) {
  constexpr std::array kSizes{DotSize{130, 64}, DotSize{67, 256}, DotSize{128, 200},
                              DotSize{257, 136}};
  unsigned seed = 1;
  std::set<std::string> taken;
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF16, DType::kBF16}) {
      DotProblem problem{form, activation, kSizes[seed % kSizes.size()],
                         static_cast<DotEnd>(seed % 4)};
      if (is_integer(form.element)) problem.form.scale = activation;
      if (form.block > 0 && !form.k_last) problem.size = {130, 64};  // whole blocks
      if (judge(problem, seed++, {1, 7, 33}) > 0) {
        taken.insert(std::string(form.name) + " " + std::string(name(activation)));
      }
    }
  }
  EXPECT_GE(taken.size(), 29u);
}

TEST(PipelinedDot, ManyRowsAndSplits) {
  for (const DotForm& form : dot_forms()) {
    if (form.element != DType::kF4E2M1) continue;
    const DotProblem problem{form, DType::kF16, {160, 1024}, DotEnd::kBias};
    judge(problem, 7, {0, 1, 64, 65, 300});
    break;
  }
}

}  // namespace
}  // namespace tenon::kernels
