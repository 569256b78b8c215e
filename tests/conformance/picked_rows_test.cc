// The last rows of a prefill, normed and multiplied in one kernel, against float64.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kWidth = 512;

DotProblem last_product() {
  const DotForm form = *std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  return {form, DType::kF16, {130, kWidth}, DotEnd::kPlain};
}

ir::ValueId add_integers(ir::Graph& graph, const char* name, std::vector<int64_t> dims,
                         double value) {
  return graph.add_constant(name, ir::Tensor::of(DType::kI64, std::move(dims), {value}));
}

ir::ValueId picked(ir::Graph& graph, const char* op, ir::ValueId rows) {
  const bool gathers = std::string_view(op) == "Gather";
  std::vector<ir::ValueId> inputs = {rows};
  if (gathers) {
    inputs.push_back(add_integers(graph, "last", {}, -1));
  } else {
    inputs.push_back(add_integers(graph, "first", {1}, -1));
    inputs.push_back(add_integers(graph, "end", {1}, 1e9));
    inputs.push_back(add_integers(graph, "axes", {1}, 1));
  }
  const ir::ValueId y = add_node(graph, op, 13, std::move(inputs), DType::kF16);
  graph.value(y).shape.reset();
  if (gathers) graph.node(graph.value(y).producer).attributes["axis"] = int64_t{1};
  return y;
}

// Logits of all rows, of which the last are picked.
ir::Graph decoder_end(const char* op, std::mt19937& random) {
  ir::Graph graph;
  ir::Value x;
  x.name = "x";
  x.dtype = DType::kF16;
  x.shape = Shape{Dim::symbol("b"), Dim::symbol("s"), kWidth};
  const ir::ValueId rows = graph.add_input(std::move(x));
  const ReferenceTensor gamma = random_tensor(DType::kF16, {kWidth}, random);
  const ir::ValueId weight =
      graph.add_constant("gamma", ir::Tensor::copy(DType::kF16, {kWidth}, gamma.bytes()));
  const ir::ValueId normed = add_node(graph, "RMSNormalization", 23, {rows, weight}, DType::kF16);
  const ir::ValueId logits = add_dot(graph, normed, last_product(), random);
  graph.value(logits).shape = Shape{Dim::symbol("b"), Dim::symbol("s"), last_product().size.n};
  graph.add_output(picked(graph, op, logits));
  return graph;
}

void judge(const char* op) {
  SCOPED_TRACE(op);
  std::mt19937 random(5);
  const ir::Graph graph = decoder_end(op, random);
  const Settings settings = pipelined_settings();
  const ir::Graph fused = fuse(graph, {}, [&](const ir::Graph& whole, const ir::Node& node) {
    const Choice choice = select(whole, node, settings);
    return choice.ok() ? Support::yes() : Support::no(choice.reason());
  });
  ASSERT_EQ(fused.order().size(), 1u) << "the norm is in the product's kernel";
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  for (const auto& [batch, tokens] : {std::pair<int64_t, int64_t>{1, 7}, {1, 1}, {3, 4}, {20, 2}}) {
    const std::vector<ReferenceTensor> inputs = {
        random_tensor(DType::kF16, {batch, tokens, kWidth}, random)};
    const std::vector<ReferenceTensor> expected = reference::evaluate(graph, inputs);
    double largest = 0;
    for (int64_t i = 0; i < expected[0].elements(); ++i) {
      largest = std::max(largest, std::fabs(expected[0].number(i)));
    }
    EXPECT_EQ(disagreement(run(*executable, fused, inputs), expected,
                           [&](size_t, int64_t, double) { return largest * 2e-3; }),
              "")
        << batch << " sequences of " << tokens;
  }
}

TEST(PickedRows, AreNormedInTheProductThatReadsThem) {
  judge("Slice");
  judge("Gather");
}

}  // namespace
}  // namespace tenon::kernels
