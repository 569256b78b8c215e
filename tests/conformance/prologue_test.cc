// Norms that the kernels of products compute for themselves, against float64 and against norms that
// have a kernel of their own.
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

enum class Norm { kRms, kLayer };

DotForm form_of(std::string_view name, DType activation) {
  DotForm form = *std::ranges::find(dot_forms(), name, &DotForm::name);
  if (is_integer(form.element)) form.scale = activation;
  return form;
}

ir::ValueId add_columns(ir::Graph& graph, const char* name, DType dtype, int64_t k,
                        std::mt19937& random) {
  const ReferenceTensor numbers = random_tensor(dtype, {k}, random);
  const std::vector<std::byte> bytes = numbers.bytes();
  return graph.add_constant(name, ir::Tensor::copy(dtype, {k}, bytes));
}

ir::ValueId add_norm(ir::Graph& graph, Norm norm, ir::ValueId x, DType activation,
                     std::mt19937& random) {
  const DType dtype = graph.value(x).dtype;
  const int64_t k = graph.value(x).shape->back().value();
  std::vector<ir::ValueId> operands = {x, add_columns(graph, "gamma", dtype, k, random)};
  const bool centred = norm == Norm::kLayer;
  if (centred) operands.push_back(add_columns(graph, "beta", dtype, k, random));
  const ir::ValueId y = centred
                            ? add_node(graph, "LayerNormalization", 17, std::move(operands), dtype)
                            : add_node(graph, "RMSNormalization", 23, std::move(operands), dtype);
  return dtype == activation ? y : add_node(graph, "Cast", 13, {y}, activation);
}

// A norm, and the products of its rows: alone, and together.
struct Normed {
  std::vector<DotProblem> problems;
  ir::Graph norm, products, both;

  Normed(Norm kind, std::vector<DotProblem> dots, DType rows_type,
         std::optional<int64_t> rows = std::nullopt, bool gated = false)
      : problems(std::move(dots)) {
    const DotProblem& first = problems[0];
    std::mt19937 random(21);
    const ir::ValueId x = add_rows(norm, rows_type, first.size.k, rows);
    norm.add_output(add_norm(norm, kind, x, first.activation, random));
    std::mt19937 weights(22);
    add_products(products, add_rows(products, first.activation, first.size.k, rows), gated,
                 weights);
    random.seed(21);
    weights.seed(22);
    const ir::ValueId together = add_rows(both, rows_type, first.size.k, rows);
    add_products(both, add_norm(both, kind, together, first.activation, random), gated, weights);
    for (const char* pass : {"decompose", "fuse_epilogues", "merge_dots", "fuse_loops"}) {
      both = run_pass(pass, std::move(both));
      norm = run_pass(pass, std::move(norm));
    }
  }

  void add_products(ir::Graph& graph, ir::ValueId rows, bool gated, std::mt19937& random) const {
    std::vector<ir::ValueId> results;
    for (const DotProblem& problem : problems) {
      results.push_back(add_dot(graph, rows, problem, random));
    }
    if (!gated) {
      for (const ir::ValueId result : results) graph.add_output(result);
      return;
    }
    graph.add_output(add_node(graph, "Mul", 14, results, problems[0].activation));
  }

  ir::Graph fused() const {
    ir::Graph graph = run_pass("fuse_prologues", both);
    EXPECT_EQ(graph.order().size(), 1u);
    const ir::Node& node = graph.node(graph.order().front());
    EXPECT_EQ(node.op, ir::kMergedDots);
    EXPECT_TRUE(ir::MergedDots::from(node).prologue);
    const Choice choice = select(graph, node, pipelined_settings());
    EXPECT_TRUE(choice.ok()) << choice.reason();
    return graph;
  }
};

// Products of exactly those rows that the norm's own kernel makes; on a GPU, where its blocks add
// in another order, a row may be rounded otherwise.
void judge_normed(const Normed& normed, std::initializer_list<int64_t> rows,
                  const Settings& settings = pipelined_settings()) {
  SCOPED_TRACE(describe(normed.problems[0]));
  std::mt19937 random(7);
  const ir::Graph fused = normed.fused();
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  const std::unique_ptr<Executable> alone = build_for_test(normed.norm, settings);
  for (const int64_t m : rows) {
    const std::vector<ReferenceTensor> inputs = dot_inputs(fused, m, random);
    std::vector<ReferenceTensor> made = run(*alone, normed.norm, {inputs[0]});
    made.insert(made.end(), inputs.begin() + 1, inputs.end());
    std::vector<ReferenceTensor> sums, results;
    for (size_t i = 0; i < normed.problems.size(); ++i) {
      sums.push_back(magnitudes(normed.products, made, i));
      ir::Graph product = normed.products;
      product.set_output(0, product.node(product.order()[i]).output(0));
      results.push_back(reference::evaluate(product, made)[0]);
    }
    const auto off = [&](size_t i, int64_t index) {
      const DotProblem& problem = normed.problems[i];
      const double flips = settings.emulate ? 0 : 2 * unit_roundoff(problem.activation);
      return error_of(problem, sums[i].number(index)) + flips * sums[i].number(index);
    };
    const bool gated = normed.products.outputs().size() < normed.problems.size();
    const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
      const double rounding =
          4 * unit_roundoff(normed.problems[output].activation) * std::fabs(wanted);
      if (!gated) return off(output, index) + rounding;
      return off(0, index) * (std::fabs(results[1].number(index)) + off(1, index)) +
             std::fabs(results[0].number(index)) * off(1, index) + rounding;
    };
    EXPECT_EQ(disagreement(run(*executable, fused, inputs),
                           reference::evaluate(normed.products, made), tolerance),
              "")
        << m << " rows";
  }
}

class Prologue : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  DotProblem problem(int64_t n, int64_t k, DotEnd end) const {
    const DType activation = std::get<1>(GetParam());
    return {form_of(std::get<0>(GetParam()), activation), activation, {n, k}, end};
  }
  DType activation() const { return std::get<1>(GetParam()); }
};

TEST_P(Prologue, RmsNormOfSeveralProducts) {
  const std::vector<DotProblem> dots = {problem(130, 512, DotEnd::kBias),
                                        problem(64, 512, DotEnd::kAlpha),
                                        problem(67, 512, DotEnd::kBody)};
  judge_normed({Norm::kRms, dots, activation()}, {1, 2, 5, 33});
}

TEST_P(Prologue, LayerNormOfOneProduct) {
  judge_normed({Norm::kLayer, {problem(100, 768, DotEnd::kBias)}, activation()}, {0, 1, 3});
}

TEST_P(Prologue, GateAndUp) {
  const std::vector<DotProblem> dots = {problem(72, 512, DotEnd::kPlain),
                                        problem(72, 512, DotEnd::kAlpha)};
  judge_normed({Norm::kRms, dots, DType::kF32, std::nullopt, /*gated=*/true}, {1, 9});
}

INSTANTIATE_TEST_SUITE_P(Formats, Prologue,
                         testing::Combine(testing::Values("nvfp4", "mxfp4", "mxfp8", "int4_n_major",
                                                          "nbits4_zero", "fp8_channel", "fp8_block",
                                                          "fp8_square", "uint8_block_zero",
                                                          "uint4_large_zero"),
                                          testing::Values(DType::kF16)),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });
INSTANTIATE_TEST_SUITE_P(Bf16, Prologue,
                         testing::Combine(testing::Values("nvfp4", "uint8_block_zero"),
                                          testing::Values(DType::kBF16)),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });
INSTANTIATE_TEST_SUITE_P(F32, Prologue,
                         testing::Combine(testing::Values("nvfp4", "uint8_block_zero"),
                                          testing::Values(DType::kF32)),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });

DotProblem nvfp4(int64_t n, int64_t k) {
  return {form_of("nvfp4", DType::kF16), DType::kF16, {n, k}, DotEnd::kPlain};
}

// Rows that are known from the beginning: all of them stay in the block.
TEST(Prologues, FewRows) {
  for (const int64_t rows : {1, 2, 3, 4}) {
    judge_normed({Norm::kLayer, {nvfp4(130, 1024), nvfp4(40, 1024)}, DType::kF32, rows}, {rows});
  }
}

TEST(Prologues, EveryConfig) {
  const Normed normed(Norm::kRms, {nvfp4(77, 2048)}, DType::kF16);
  Settings settings = pipelined_settings();
  for (settings.tuning.rank = 0; settings.tuning.rank < 8; ++settings.tuning.rank)
    judge_normed(normed, {1}, settings);
}

// Products of rows that are there may read them once as well: shapes behind all others.
TEST(Prologues, RowsAreKeptWithoutANorm) {
  std::mt19937 random(2);
  const DotProblem problem = nvfp4(77, 1536);
  for (const int64_t rows : {1, 3}) {
    const ir::Graph graph = build_dot(problem, random, rows);
    const ir::Node& node = graph.node(graph.order().front());
    Settings settings = pipelined_settings();
    const Choice choice = select(graph, node, settings);
    const auto keeps = [&] {
      return choice.lower().configs[0].chosen.config.find(Knob::kResidentX).has_value();
    };
    while (settings.tuning.rank < 99 && !keeps()) ++settings.tuning.rank;
    ASSERT_LT(settings.tuning.rank, 99);
    const std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
    EXPECT_EQ(disagreement(run(*build_for_test(graph, settings), graph, inputs),
                           reference::evaluate(graph, inputs),
                           dot_tolerance(problem, magnitudes(graph, inputs))),
              "");
  }
}

// How K is cut decides the order of additions, nothing else does.
TEST(Prologues, SameBitsAsApart) {
  const Normed normed(Norm::kRms, {nvfp4(200, 1024), nvfp4(60, 1024)}, DType::kF16);
  const ir::Graph fused = normed.fused();
  const auto cut_of = [](const ir::Graph& graph, const Settings& settings) {
    const ir::Node& node = graph.node(graph.order().back());
    const std::string config = select(graph, node, settings).lower().configs[0].chosen.text();
    // K per stage and its split among warps; stages and CTAs do not matter.
    const size_t k = config.find("K/stage"), split = config.find("warp split-K");
    if (split == std::string::npos) return std::string();
    return config.substr(k, config.find(',', k) - k) +
           config.substr(split, config.find(',', split) - split);
  };
  Settings settings = pipelined_settings(), apart = settings;
  if (!settings.emulate) GTEST_SKIP() << "blocks of a norm alone have another number of threads";
  const std::string wanted = cut_of(fused, settings);
  while (apart.tuning.rank < 64 && cut_of(normed.both, apart) != wanted) ++apart.tuning.rank;
  ASSERT_LT(apart.tuning.rank, 64) << wanted;
  std::mt19937 random(3);
  const std::vector<ReferenceTensor> inputs = dot_inputs(normed.norm, 1, random);
  const auto together = run(*build_for_test(fused, settings), fused, inputs);
  const auto separate = run(*build_for_test(normed.both, apart), normed.both, inputs);
  ASSERT_EQ(together.size(), separate.size());
  for (size_t i = 0; i < together.size(); ++i) {
    EXPECT_EQ(together[i].bytes(), separate[i].bytes());
  }
}

// A norm stays apart where no kernel computes it: long rows, many rows, K in no whole stages.
TEST(Prologues, WhatStaysApart) {
  const auto answer = [](const Normed& normed) {
    const ir::Graph graph = run_pass("fuse_prologues", normed.both);
    return supports(graph, graph.node(graph.order().front()), pipelined_settings());
  };
  EXPECT_TRUE(answer({Norm::kRms, {nvfp4(64, 1024)}, DType::kF16}));
  for (const Normed& normed :
       {Normed(Norm::kRms, {nvfp4(64, 16384)}, DType::kF16),
        Normed(Norm::kRms, {nvfp4(64, 1024)}, DType::kF16, 64),
        Normed(Norm::kRms, {nvfp4(64, 1032)}, DType::kF16),
        Normed(Norm::kRms, {{form_of("f16", DType::kF16), DType::kF16, {64, 1024}}},
               DType::kF16)}) {
    const Support no = answer(normed);
    EXPECT_FALSE(no);
    EXPECT_NE(no.reason.find("each CTA"), std::string::npos) << no.reason;
  }
}

}  // namespace
}  // namespace tenon::kernels
