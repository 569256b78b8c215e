// The pipelined products of packed weights, every format, run by the interpreter with the tiles and
// packing of a GPU, against float64.
#include <algorithm>
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr std::array kActivations = {DType::kF16, DType::kBF16, DType::kF32};

Settings only_pipelined() {
  Settings settings = pipelined_settings();
  settings.tuning.candidate = "pipelined";
  return settings;
}

DotForm nvfp4() {
  for (const DotForm& form : dot_forms()) {
    if (form.name == std::string_view("nvfp4")) return form;
  }
  throw std::invalid_argument("nvfp4");
}

// How many Runs were judged; 0: the candidate does not take the problem. `size`: of activations, a
// power of two.
int judge(const DotProblem& problem, unsigned seed, std::initializer_list<int64_t> rows,
          const Settings& settings = only_pipelined(), double size = 1) {
  std::mt19937 random(seed);
  const ir::Graph graph = build_dot(problem, random);
  const ir::Node& node = graph.node(graph.order().front());
  SCOPED_TRACE(describe(problem) + " seed " + std::to_string(seed));
  if (!select(graph, node, settings).ok()) return 0;
  const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
  for (const int64_t m : rows) {
    std::vector<ReferenceTensor> inputs = dot_inputs(graph, m, random);
    for (double& x : inputs[0].reals) x *= size;
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
    for (const DType activation : kActivations) {
      DotProblem problem{form, activation, kSizes[seed % kSizes.size()],
                         static_cast<DotEnd>(seed % 4)};
      if (is_integer(form.element) && seed % 4 < 2) problem.form.scale = activation;
      if (form.block > 0 && !form.k_last) problem.size = {130, 64};  // whole blocks
      if (judge(problem, seed++, {1, 7, 33}) > 0) {
        taken.insert(std::string(form.name) + " " + std::string(name(activation)));
      }
    }
  }
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : kActivations) {
      const std::string what = std::string(form.name) + " " + std::string(name(activation));
      const DType operand = activation == DType::kF32 ? DType::kBF16 : activation;
      const bool is_plain = bit_width(form.element) > 8, is_shifted = is_floating(form.zero);
      const bool is_rounded = activation != DType::kF32;
      const bool expected = is_plain ? form.element == operand : !is_shifted || is_rounded;
      EXPECT_EQ(taken.contains(what), expected) << what;
    }
  }
}

// Which of the first configs for one row are skinny GEMMs.
std::vector<int> skinny_ranks(const DotProblem& problem) {
  std::mt19937 random(1);
  const ir::Graph graph = build_dot(problem, random, /*rows=*/1);
  const ir::Node& node = graph.node(graph.order().front());
  Settings settings = only_pipelined();
  const Choice choice = select(graph, node, settings);
  std::vector<int> ranks;
  for (; choice.ok() && settings.tuning.rank < 24; ++settings.tuning.rank) {
    const ConfigChoice config = choice.lower().configs.front();
    if (config.chosen.config.skeleton == Skeleton::kSkinnyGemm) {
      ranks.push_back(settings.tuning.rank);
    }
  }
  return ranks;
}

TEST(PipelinedDot, SkinnyGemmOfEveryFormat) {
  unsigned seed = 100;
  int formats = 0;
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : kActivations) {
      DotProblem problem{form, activation, {150, 1024}, static_cast<DotEnd>(seed % 4)};
      if (is_integer(form.element)) problem.form.scale = activation;
      const std::vector<int> ranks = skinny_ranks(problem);
      if (ranks.empty()) continue;
      Settings settings = only_pipelined();
      settings.tuning.rank = ranks[seed % ranks.size()];
      formats += judge(problem, seed++, {1, 2, 7, 16}, settings) > 0;
    }
  }
  EXPECT_GE(formats, 25);
}

TEST(PipelinedDot, EverySkinnyConfig) {
  const auto nvfp4 = [](const DotForm& form) { return form.element == DType::kF4E2M1; };
  const DotForm& form = *std::ranges::find_if(dot_forms(), nvfp4);
  DotProblem problem{form, DType::kF16, {77, 2048}, DotEnd::kBias};
  const std::vector<int> ranks = skinny_ranks(problem);
  EXPECT_GE(ranks.size(), 4u);
  for (int rank : ranks) {
    Settings settings = only_pipelined();
    settings.tuning.rank = rank;
    EXPECT_GT(judge(problem, 5, {1, 8, 13}, settings), 0);
  }
}

// Decode with integer weights: scales multiply the sums of blocks, and where these fill all columns
// codes are multiplied with up to 1032 beside them, which is taken from the sums. Rows of one sign
// leave most to take.
TEST(PipelinedDot, OffsetsAreTakenFromSumsOfBlocks) {
  unsigned seed = 500;
  for (const DType element : {DType::kI4, DType::kU4}) {
    for (const int64_t block : {16, 32, 64, 2048}) {
      const DotProblem problem{
          {.name = "int4", .element = element, .scale = DType::kF16, .block = block},
          DType::kF16,
          {150, 2048}};
      std::mt19937 random(seed++);
      const ir::Graph graph = build_dot(problem, random, 1);
      const ir::Node& node = graph.node(graph.order().front());
      std::vector<ReferenceTensor> inputs = dot_inputs(graph, 1, random);
      for (double& x : inputs[0].reals) x = std::fabs(x);
      const ReferenceTensor sums = magnitudes(graph, inputs);
      const Tolerance exact = dot_tolerance(problem, sums);
      const Tolerance tolerance = [&](size_t output, int64_t index, double wanted) {
        return exact(output, index, wanted) + std::ldexp(sums.number(index), -16);
      };
      Settings settings = only_pipelined();
      const Choice choice = select(graph, node, settings);
      int kept = 0;
      for (; settings.tuning.rank < 40; ++settings.tuning.rank) {
        const std::string config = choice.lower().configs[0].chosen.text();
        if (config.find("x in smem") == std::string::npos) continue;
        ++kept;
        SCOPED_TRACE(describe(problem) + ", blocks of " + std::to_string(block) + ", " + config);
        EXPECT_EQ(disagreement(run(*build_for_test(graph, settings), graph, inputs),
                               reference::evaluate(graph, inputs), tolerance),
                  "");
      }
      EXPECT_GE(kept, 2) << describe(problem);
    }
  }
}

// Odd N, K that ends inside a block, one block in parts and several in a stage.
TEST(PipelinedDot, ScalesOfBlocksMultiplyTheirSums) {
  unsigned seed = 300;
  for (const DotForm& form : dot_forms()) {
    if (bit_width(form.element) != 8 || is_integer(form.element) || form.block < 64) continue;
    for (const DType activation : kActivations) {
      for (const DotSize size : {DotSize{131, 520}, DotSize{257, 1024}}) {
        const DotProblem problem{form, activation, size, static_cast<DotEnd>(seed % 4)};
        EXPECT_EQ(judge(problem, seed++, {1, 7, 40, 300}), 4) << describe(problem);
      }
    }
  }
}

// Several of them in a unit of 64 k.
TEST(PipelinedDot, ScalesOfSmallBlocksMultiplyTheirSums) {
  unsigned seed = 400;
  for (const DotForm& form : dot_forms()) {
    const bool sums = form.scale == DType::kF32 && form.block > 0 && form.block < 64;
    if (!sums || !form.k_last || is_floating(form.zero)) continue;
    for (const DType activation : kActivations) {
      const DotProblem problem{form, activation, {131, 520}, static_cast<DotEnd>(seed % 4)};
      EXPECT_EQ(judge(problem, seed++, {1, 7, 40, 130}), 4) << describe(problem);
    }
  }
}

// Scales and zero points of large blocks stand apart from the codes, once each.
std::vector<DotForm> forms_with_sides_apart(DType activation) {
  const auto form = [&](DType element, int64_t block, DType scale, DType zero) {
    return DotForm{
        .name = "apart", .element = element, .scale = scale, .block = block, .zero = zero};
  };
  constexpr DType kNo = DType::kUndefined;
  return {
      form(DType::kI4, 0, activation, kNo),          form(DType::kU4, 0, activation, DType::kU4),
      form(DType::kU4, 128, activation, DType::kU4), form(DType::kU4, 256, DType::kF32, DType::kU4),
      form(DType::kI2, 0, activation, kNo),          form(DType::kU2, 512, activation, DType::kU2),
      form(DType::kU2, 128, DType::kF32, kNo),       form(DType::kU4, 0, DType::kF32, DType::kU4)};
}

TEST(PipelinedDot, SidesApartOfUnits) {
  unsigned seed = 600;
  for (const DType activation : kActivations) {
    for (const DotForm& form : forms_with_sides_apart(activation)) {
      const DotProblem tail{form, activation, {131, 1032}, static_cast<DotEnd>(seed % 4)};
      EXPECT_EQ(judge(tail, seed++, {1, 7, 40, 130}), 4) << describe(tail);
      const DotProblem whole{form, activation, {150, 4096}, DotEnd::kBias};
      const std::vector<int> ranks = skinny_ranks(whole);
      Settings settings = only_pipelined();
      settings.tuning.rank = ranks.at(seed % ranks.size());
      EXPECT_EQ(judge(whole, seed++, {1, 9}, settings), 2) << describe(whole);
    }
  }
}

// Zero points of the activations' type, or wider; integers among them are codes to f32 rows.
TEST(PipelinedDot, RealZeroPoints) {
  const auto real = [](const DotForm& form) { return is_floating(form.zero); };
  DotForm form = *std::ranges::find_if(dot_forms(), real);
  unsigned seed = 500;
  for (const DType activation : kActivations) {
    form.whole_zero = activation == DType::kF32;
    for (const DType zero : {activation, DType::kF32}) {
      for (const int64_t block : {16, 32, 128}) {
        form.scale = form.zero = zero;
        form.block = block;
        const DotProblem problem{form, activation, {131, 520}, static_cast<DotEnd>(seed % 4)};
        EXPECT_EQ(judge(problem, seed++, {1, 7, 40}), 3) << describe(problem);
      }
    }
  }
}

// Products near 2^-148 would vanish if codes were summed at the size that their bits have in bf16.
TEST(PipelinedDot, TinyActivationsKeepTheirBits) {
  for (const DotForm& form : dot_forms()) {
    if (bit_width(form.element) != 8 || is_integer(form.element)) continue;
    const DotProblem problem{form, DType::kBF16, {130, 256}, DotEnd::kPlain};
    if (!form.k_last && form.block > 0) continue;
    EXPECT_EQ(judge(problem, 5, {9}, only_pipelined(), 0x1p-28), 1) << describe(problem);
  }
}

// Sums of so few products are too exact for the third term of a row to be forgotten.
TEST(PipelinedDot, RowsInF32KeepAllTheirBits) {
  for (const DotForm& form : dot_forms()) {
    if (form.block != 16 || form.scale != DType::kF8E4M3FN) continue;
    const DotProblem problem{form, DType::kF32, {200, 16}, DotEnd::kPlain};
    EXPECT_EQ(judge(problem, 11, {1, 5, 40}), 3) << describe(problem);
  }
}

TEST(PipelinedDot, ManyRowsAndSplits) {
  for (const DotForm& form : dot_forms()) {
    if (form.element != DType::kF4E2M1) continue;
    const DotProblem problem{form, DType::kF16, {160, 1024}, DotEnd::kBias};
    judge(problem, 7, {0, 1, 64, 65, 300});
    break;
  }
}

// One node, its rows dealt to two candidates: each Run takes the one that has its rows.
TEST(PipelinedDot, SharesItsRowsWithAnotherCandidate) {
  Settings settings = pipelined_settings();
  settings.tuning.candidate = "mma";
  settings.tuning.candidate_rows = {5, 20};
  std::mt19937 random(7);
  const DotProblem problem{nvfp4(), DType::kF16, {130, 64}, DotEnd::kPlain};
  const ir::Graph graph = build_dot(problem, random);
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  EXPECT_EQ(choice.chosen(), "pipelined (rows <= 4), mma (rows <= 20), pipelined (rows > 20)");
  EXPECT_EQ(judge(problem, 7, {1, 4, 5, 20, 21, 40}, settings), 6);
}

// Plans carry numbers: rows without gaps, times that rise along a ranking, room for split-K.
TEST(PipelinedDot, PlansTellConfigsInNumbers) {
  const Settings settings = only_pipelined();
  std::mt19937 random(8);
  const ir::Graph graph = build_dot({nvfp4(), DType::kF16, {4096, 4096}, DotEnd::kPlain}, random);
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  ASSERT_EQ(choice.parts.size(), 1u) << choice.reason();
  int64_t next = 0;
  for (const RangePlan& range : choice.parts[0].plan.ranges) {
    EXPECT_EQ(range.rows.first, next);
    next = range.rows.last == RowRange::kNoLimit ? range.rows.last : range.rows.last + 1;
    ASSERT_FALSE(range.kernels.empty());
    const PlannedKernel& best = range.kernels.front();
    EXPECT_GT(best.microseconds, 0);
    EXPECT_GT(best.config.find(Knob::kTileN).value_or(0), 0) << best.text();
    const bool splits = best.config.find(Knob::kSplitK).value_or(1) > 1;
    EXPECT_EQ(splits, !best.workspace_bytes.is(0)) << best.text();
  }
  EXPECT_EQ(next, RowRange::kNoLimit);
}

}  // namespace
}  // namespace tenon::kernels
