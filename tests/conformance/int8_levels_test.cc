// Dots of int8 activations as every level of host instructions makes them: random sizes and rows of
// each 4-bit form and of bytes, against float64. What this machine cannot run is interpreted, and
// an emulator runs its machine code (TENON_TEST_LEVEL, see host_kernel.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "kernels/build_program.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/codegen/host_kernel.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr auto kForms = std::to_array<std::string_view>(
    {"nvfp4", "uint4_zero", "int8_channel", "nbits4", "mxfp4", "int4_n_major", "nbits8",
     "nvfp4_f32_scale", "int4_k_major", "nbits4_float_zero", "uint4_large_zero"});
constexpr std::array<int64_t, 9> kRowCounts{1, 2, 3, 4, 5, 6, 7, 8, 9};
constexpr int kRounds = 4;
// An emulator compiles a hundred times slower: the first forms, once.
constexpr size_t kEmulatedForms = 3;

const DotForm& form_called(std::string_view name) {
  return *std::ranges::find(dot_forms(), name, &DotForm::name);
}

// Up to three panels; K of a few blocks, of NVFP4 whole chains of them in every other round.
DotSize random_size(const DotForm& form, int round, std::mt19937& random) {
  const int64_t block = form.block == 0 ? 8 : form.block;
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  const int64_t n = 1 + below(40), blocks = 1 + below(5);
  return {n, block * (block == 16 && round % 2 == 0 ? 4 * blocks : blocks)};
}

// Rounding takes half a step of int8 under the largest |a| of a row at most; what whole numbers
// with 127 among every eight lose is the kernel's own.
struct Rows {
  std::vector<ReferenceTensor> inputs;
  ReferenceTensor steps;
  double share = 1.01;  // of the steps that may be lost
};

Rows make_rows(const DotForm& form, const ir::Graph& graph, int64_t count, bool whole,
               std::mt19937& random) {
  Rows rows{dot_inputs(graph, count, random), {}};
  ReferenceTensor& a = rows.inputs[0];
  std::uniform_int_distribution<int> code(-127, 127);
  for (int64_t i = 0; whole && i < a.elements(); ++i) a.set(i, i % 8 == 3 ? 127 : code(random));
  std::vector<ReferenceTensor> steps = rows.inputs;
  const int64_t k = a.dims[1];
  for (int64_t row = 0; row < count; ++row) {
    double largest = 0;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(a.number(row * k + i)));
    for (int64_t i = 0; i < k; ++i) steps[0].set(row * k + i, largest / 254);
  }
  rows.steps = magnitudes(graph, steps);
  // Sums of NVFP4's blocks are scaled in chains, at a hundredth of what rounding may cost.
  if (whole) rows.share = form.element == DType::kF4E2M1 && form.block == 16 ? 0.01 : 0;
  return rows;
}

// Whether the level has a kernel for it. A single count is the graph's own, known when it is
// compiled.
bool judge_level(const codegen::HostTarget& host, bool interpreted, const DotProblem& problem,
                 std::mt19937& random, std::span<const int64_t> row_counts = kRowCounts) {
  Settings settings = conformance_settings();
  settings.host = host;
  settings.emulate = interpreted;
  settings.precision = Precision::kInt8;
  settings.tuning.candidate = "int8";
  std::optional<int64_t> known;
  if (row_counts.size() == 1) known = row_counts.front();
  const ir::Graph graph = build_dot(problem, random, known);
  if (!select(graph, graph.node(graph.order().front()), settings).ok()) return false;
  const std::unique_ptr<Executable> executable = build_on_host(graph, settings);
  for (const int64_t count : row_counts) {
    const Rows rows = make_rows(problem.form, graph, count, count % 2 == 0, random);
    const Tolerance exact = dot_tolerance(problem, magnitudes(graph, rows.inputs));
    const Tolerance tolerance = [&](size_t output, int64_t index, double expected) {
      return rows.share * rows.steps.number(index) + exact(output, index, expected);
    };
    EXPECT_EQ(disagreement(run(*executable, graph, rows.inputs),
                           reference::evaluate(graph, rows.inputs), tolerance),
              "")
        << count << " rows of " << describe(problem) << (interpreted ? ", interpreted" : "");
  }
  return true;
}

class Int8Levels : public testing::TestWithParam<std::string> {};

TEST_P(Int8Levels, EveryFormAtEveryRowCount) {
  const codegen::HostTarget host = codegen::host_target(GetParam());
  if (codegen::no_emulator()) GTEST_SKIP() << codegen::no_emulator();
  const char* only = codegen::only_level();
  if (only != nullptr && GetParam() != only) GTEST_SKIP() << "TENON_TEST_LEVEL is " << only;
  const bool interpreted = !codegen::runs_here(host);
  ASSERT_FALSE(only != nullptr && interpreted) << "this machine has not what " << only << " needs";
  const size_t forms = only == nullptr ? kForms.size() : kEmulatedForms;
  const int rounds = only == nullptr ? kRounds : 1;
  std::mt19937 random(7);
  size_t judged = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::string_view name : std::span(kForms).first(forms)) {
      const DotForm& form = form_called(name);
      const DotSize size = random_size(form, round, random);
      judged += judge_level(host, interpreted, {form, DType::kF32, size, DotEnd::kBias}, random);
    }
  }
  // Plain NEON has no products of bytes.
  EXPECT_EQ(judged, GetParam() == "aarch64-neon" ? 0 : rounds * forms);
}

// Rows of several tasks, the last of them odd, K of several blocks, and rows that the graph fixes.
TEST_P(Int8Levels, LongAndFixedOnes) {
  constexpr std::array<int64_t, 2> many{99, 200}, few{2, 7};
  const codegen::HostTarget host = codegen::host_target(GetParam());
  if (!host.has("avx2") && !host.has("dotprod")) GTEST_SKIP() << "no products of bytes";
  if (codegen::only_level()) GTEST_SKIP() << "too slow under an emulator";
  const bool interpreted = !codegen::runs_here(host);
  std::mt19937 random(9);
  for (const std::string_view name : {"nvfp4", "uint4_zero"}) {
    const DotForm& form = form_called(name);
    const auto judged = [&](DotSize size, std::span<const int64_t> rows) {
      return judge_level(host, interpreted, {form, DType::kF32, size, DotEnd::kBias}, random, rows);
    };
    EXPECT_TRUE(judged({20, 64}, many));
    EXPECT_TRUE(judged({8, 2112}, few));
    for (const int64_t rows : {1, 3}) EXPECT_TRUE(judged({20, 64}, std::array{rows}));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Int8Levels, testing::ValuesIn(codegen::host_target_names()),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace tenon::kernels
