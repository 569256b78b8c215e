// Products of the same rows that run as one kernel, packed into one buffer, against float64.
#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

DotForm form_of(std::string_view name, DType activation) {
  const auto found = std::ranges::find(dot_forms(), name, &DotForm::name);
  DotForm form = *found;
  if (is_integer(form.element)) form.scale = activation;
  return form;
}

// The graph of one merged node that it becomes, where there is a kernel for that.
ir::Graph merge(const ir::Graph& apart, const Settings& settings = pipelined_settings()) {
  ir::Graph merged = apart;
  for (const char* pass : {"decompose", "fuse_epilogues", "merge_dots"}) {
    merged = run_pass(pass, std::move(merged));
  }
  EXPECT_EQ(merged.order().size(), 1u);
  const ir::Node& node = merged.node(merged.order().front());
  EXPECT_EQ(node.op, ir::kMergedDots);
  const Choice choice = select(merged, node, settings);
  EXPECT_TRUE(choice.ok()) << choice.reason();
  return merged;
}

// What the kernels mean: the graph itself, unless they were asked to round.
struct Meant {
  ir::Graph graph;
  bool tf32;

  Meant(const ir::Graph& apart, const Settings& settings)
      : graph(apart), tf32(settings.precision == Precision::kTf32) {
    if (tf32) graph = in_tf32(std::move(graph));
  }
  std::vector<ReferenceTensor> inputs(const std::vector<ReferenceTensor>& given) const {
    return tf32 ? in_tf32(given) : given;
  }
};

Settings asking_for_tf32() {
  Settings settings = pipelined_settings();
  settings.precision = Precision::kTf32;
  return settings;
}

class Merged : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  DotForm form() const { return form_of(std::get<0>(GetParam()), std::get<1>(GetParam())); }
  DType activation() const { return std::get<1>(GetParam()); }
};

ir::Graph several(const std::vector<DotProblem>& problems, std::mt19937& random) {
  ir::Graph graph;
  const ir::ValueId a = add_rows(graph, problems[0].activation, problems[0].size.k);
  for (const DotProblem& problem : problems) {
    graph.add_output(add_dot(graph, a, problem, random));
  }
  return graph;
}

void judge_several(const std::vector<DotProblem>& problems, const ir::Graph& apart,
                   std::initializer_list<int64_t> rows, const Settings& settings) {
  SCOPED_TRACE(describe(problems[0]));
  std::mt19937 random(12);
  const ir::Graph merged = merge(apart, settings);
  const Meant meant(apart, settings);
  const std::unique_ptr<Executable> executable = build_for_test(merged, settings);
  for (const int64_t m : rows) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(apart, m, random);
    const std::vector<ReferenceTensor> used = meant.inputs(inputs);
    std::vector<ReferenceTensor> sums;
    for (size_t i = 0; i < problems.size(); ++i) sums.push_back(magnitudes(meant.graph, used, i));
    const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
      return error_of(problems[output], sums[output].number(index)) +
             unit_roundoff(problems[output].activation) * std::fabs(wanted);
    };
    EXPECT_EQ(disagreement(run(*executable, merged, inputs), reference::evaluate(meant.graph, used),
                           tolerance),
              "")
        << m << " rows";
  }
}

TEST_P(Merged, ResultsOfTheirOwn) {
  const int64_t k = form().k_last ? 200 : 128;  // the others have whole blocks
  const std::vector<DotProblem> problems = {{form(), activation(), {130, k}, DotEnd::kBias},
                                            {form(), activation(), {64, k}, DotEnd::kAlpha},
                                            {form(), activation(), {67, k}, DotEnd::kBody}};
  std::mt19937 random(11);
  judge_several(problems, several(problems, random), {1, 7, 33}, pipelined_settings());
}

// Rows of one weight share their scales, those of the other do not.
TEST(MergedDots, ScalesOfBothKinds) {
  const std::vector<DotProblem> problems = {
      {form_of("fp8_square", DType::kF16), DType::kF16, {130, 256}, DotEnd::kPlain},
      {form_of("fp8_block", DType::kF16), DType::kF16, {70, 256}, DotEnd::kBias}};
  std::mt19937 random(6);
  judge_several(problems, several(problems, random), {1, 33}, pipelined_settings());
}

// Bare powers of two are shifted into f16's range, by another distance for each weight.
TEST(MergedDots, ScalesOfAnotherRange) {
  const DotForm form = form_of("mxfp8", DType::kF16);
  const std::vector<DotProblem> problems = {{form, DType::kF16, {70, 128}, DotEnd::kPlain},
                                            {form, DType::kF16, {50, 128}, DotEnd::kPlain}};
  std::mt19937 random(4);
  ir::Graph graph = several(problems, random);
  const ir::ScaledDot second = ir::ScaledDot::from(graph.node(graph.order()[1]));
  ir::Value& scale = graph.value(second.scale_b.scale);
  std::vector<std::byte> codes(scale.constant->data, scale.constant->data + scale.constant->bytes);
  for (std::byte& code : codes) code = static_cast<std::byte>(std::to_integer<int>(code) - 7);
  scale.constant = ir::Tensor::copy(scale.dtype, scale.constant->dims, codes);
  judge_several(problems, graph, {1, 9}, pipelined_settings());
}

// act(gate) * up, with the activation as one op.
ir::Graph gated(const std::vector<DotProblem>& problems, const char* activation,
                std::mt19937& random) {
  ir::Graph graph;
  const ir::ValueId a = add_rows(graph, problems[0].activation, problems[0].size.k);
  ir::ValueId gate = add_dot(graph, a, problems[0], random);
  const ir::ValueId up = add_dot(graph, a, problems[1], random);
  const auto add = [&](const char* op, int version, std::vector<ir::ValueId> inputs) {
    ir::Value result = graph.value(gate);
    result.producer = ir::kNoNode;
    ir::Node node;
    node.op = op;
    node.since_version = version;
    node.inputs = std::move(inputs);
    node.outputs = {graph.add_value(std::move(result))};
    const ir::ValueId output = node.outputs[0];
    graph.add_node(std::move(node));
    return output;
  };
  if (activation == std::string_view("Sigmoid")) {
    gate = add("Mul", 14, {gate, add("Sigmoid", 13, {gate})});
  } else if (activation != nullptr && *activation != '\0') {
    gate = add(activation, 20, {gate});
  }
  graph.add_output(add("Mul", 14, {gate, up}));
  return graph;
}

void judge_gated(const std::vector<DotProblem>& problems, const char* activation,
                 std::initializer_list<int64_t> rows,
                 const Settings& settings = pipelined_settings()) {
  SCOPED_TRACE(describe(problems[0]) + " " + activation);
  std::mt19937 random(5);
  const ir::Graph apart = gated(problems, activation, random);
  const ir::Graph merged = merge(apart, settings);
  const Meant meant(apart, settings);
  const std::unique_ptr<Executable> executable = build_for_test(merged, settings);
  ir::Graph products = meant.graph;
  products.set_output(0, apart.node(apart.order()[0]).output(0));
  products.add_output(apart.node(apart.order()[1]).output(0));
  for (const int64_t m : rows) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(apart, m, random);
    const std::vector<ReferenceTensor> used = meant.inputs(inputs);
    const std::vector<ReferenceTensor> sums = reference::evaluate(products, used);
    const ReferenceTensor gates = magnitudes(meant.graph, used, 0),
                          ups = magnitudes(meant.graph, used, 1);
    const Tolerance tolerance = [&](size_t, int64_t index, double wanted) {
      const double gate = error_of(problems[0], gates.number(index));
      const double up = error_of(problems[1], ups.number(index));
      // Activations grow by at most 1.13 times what their operand does.
      return 1.13 * gate * (std::fabs(sums[1].number(index)) + up) +
             (std::fabs(sums[0].number(index)) + gate) * up +
             4 * unit_roundoff(problems[0].activation) * std::fabs(wanted);
    };
    EXPECT_EQ(disagreement(run(*executable, merged, inputs), reference::evaluate(meant.graph, used),
                           tolerance),
              "")
        << m << " rows";
  }
}

TEST_P(Merged, GateAndUp) {
  const int64_t k = form().k_last ? 136 : 128;
  judge_gated({{form(), activation(), {100, k}, DotEnd::kBias},
               {form(), activation(), {100, k}, DotEnd::kAlpha}},
              "Sigmoid", {1, 9, 40});
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Merged,
    testing::Combine(testing::Values("nvfp4", "mxfp4", "mxfp8", "int4_n_major", "nbits4_zero",
                                     "fp8_channel", "fp8_tensor", "fp8_block", "fp8_square",
                                     "uint8_block_zero", "uint4_large_zero", "f16"),
                     testing::Values(DType::kF16)),
    [](const auto& info) { return std::string(std::get<0>(info.param)); });
INSTANTIATE_TEST_SUITE_P(Bf16, Merged,
                         testing::Combine(testing::Values("nvfp4", "uint8_block_zero", "fp8_square",
                                                          "bf16"),
                                          testing::Values(DType::kBF16)),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });
INSTANTIATE_TEST_SUITE_P(F32, Merged,
                         testing::Combine(testing::Values("nvfp4", "mxfp8", "uint8_block_zero",
                                                          "fp8_square"),
                                          testing::Values(DType::kF32)),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });

TEST(MergedDots, PlainF32AsTf32) {
  const auto problem = [](int64_t n, DotEnd end) {
    return DotProblem{form_of("f32_transposed", DType::kF32), DType::kF32, {n, 132}, end};
  };
  const std::vector<DotProblem> three = {problem(130, DotEnd::kBias), problem(64, DotEnd::kAlpha),
                                         problem(67, DotEnd::kBody)};
  std::mt19937 random(11);
  judge_several(three, several(three, random), {1, 7, 64, 200}, asking_for_tf32());
  judge_gated({problem(101, DotEnd::kBias), problem(101, DotEnd::kPlain)}, "Sigmoid",
              {1, 7, 64, 200}, asking_for_tf32());
}

TEST(MergedDots, Activations) {
  const DotForm form = form_of("nvfp4", DType::kF16);
  const DotProblem problem{form, DType::kF16, {129, 128}, DotEnd::kPlain};
  for (const char* activation : {"", "Gelu", "Tanh"}) {
    judge_gated({problem, problem}, activation, {1, 17});
  }
}

TEST(MergedDots, SplitsAndManyRows) {
  const DotForm form = form_of("nvfp4", DType::kF16);
  const DotProblem problem{form, DType::kF16, {192, 1024}, DotEnd::kPlain};
  judge_gated({problem, problem}, "Sigmoid", {0, 1, 64, 65, 300});
}

// Ranks of shapes for few tokens, which take another kernel: one for each number of rows that its
// blocks may have.
std::vector<int> skinny_ranks(const ir::Graph& apart) {
  const ir::Graph graph = merge(apart);
  const ir::Node& node = graph.node(graph.order().front());
  Settings settings = pipelined_settings();
  const Choice choice = select(graph, node, settings);
  std::set<std::string> seen;
  std::vector<int> ranks;
  for (; choice.ok() && settings.tuning.rank < 24; ++settings.tuning.rank) {
    const std::string config = choice.lower().configs.front().chosen.text();
    const bool fresh = config.find("warp split-K") != std::string::npos &&
                       seen.insert(config.substr(0, config.find(','))).second;
    if (fresh) ranks.push_back(settings.tuning.rank);
  }
  return ranks;
}

TEST(MergedDots, EverySkinnyConfig) {
  const DotForm form = form_of("nvfp4", DType::kF16);
  const auto problem = [&](int64_t n, DotEnd end) {
    return DotProblem{form, DType::kF16, {n, 2048}, end};
  };
  const std::vector<DotProblem> pair = {problem(77, DotEnd::kBias), problem(77, DotEnd::kPlain)};
  const std::vector<DotProblem> three = {problem(130, DotEnd::kBias), problem(40, DotEnd::kAlpha),
                                         problem(67, DotEnd::kPlain)};
  std::mt19937 random(1);
  const std::vector<int> pair_ranks = skinny_ranks(gated(pair, "Sigmoid", random));
  const std::vector<int> three_ranks = skinny_ranks(several(three, random));
  EXPECT_GE(pair_ranks.size(), 2u);
  EXPECT_GE(three_ranks.size(), 2u);
  Settings settings = pipelined_settings();
  for (const int rank : pair_ranks) {
    settings.tuning.rank = rank;
    judge_gated(pair, "Sigmoid", {1, 5, 13}, settings);
  }
  for (const int rank : three_ranks) {
    settings.tuning.rank = rank;
    judge_several(three, several(three, random), {1, 5, 13}, settings);
  }
}

TEST(MergedDots, KeepTheirSize) {
  std::mt19937 random(3);
  const DotForm form = form_of("nvfp4", DType::kF16);
  const DotProblem problem{form, DType::kF16, {128, 128}, DotEnd::kPlain};
  const std::unique_ptr<Executable> executable =
      build_for_test(merge(gated({problem, problem}, "Sigmoid", random)), pipelined_settings());
  EXPECT_EQ(executable->packed_bytes(), executable->weight_bytes());
}

TEST(MergedDots, NoKernelOnTheHost) {
  std::mt19937 random(3);
  const DotForm form = form_of("nvfp4", DType::kF16);
  const DotProblem problem{form, DType::kF16, {128, 128}, DotEnd::kPlain};
  const ir::Graph merged = merge(gated({problem, problem}, "Sigmoid", random));
  Settings host = conformance_settings();
  host.gpu.reset();
  host.emulate = false;
  const Support answer = supports(merged, merged.node(merged.order()[0]), host);
  EXPECT_FALSE(answer);
  EXPECT_NE(answer.reason, "");
}

}  // namespace
}  // namespace tenon::kernels
