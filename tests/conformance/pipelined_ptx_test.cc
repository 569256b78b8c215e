// The kernels of pipelined products as the assembler takes them: every format for sm_90a, some for
// GPUs without TMA.
#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

Settings only_pipelined(const std::string& arch = "sm_90a") {
  Settings settings = assembled_settings();
  settings.tuning.candidate = "pipelined";
  settings.gpu->arch = arch;
  const bool is_small = arch == "sm_86" || arch == "sm_89" || arch == "sm_120a";
  if (is_small) settings.gpu->shared_bytes = 99 << 10;
  if (arch == "sm_80") settings.gpu->shared_bytes = 163 << 10;
  return settings;
}

// `all`: every kernel of the weight, else the one for the most rows.
void expect_clean(const DotProblem& problem, bool all, const std::string& arch = "sm_90a",
                  Precision precision = Precision::kExact) {
  std::mt19937 random(1);
  const ir::Graph graph = build_dot(problem, random);
  const ir::Node& node = graph.node(graph.order().front());
  Settings settings = only_pipelined(arch);
  settings.precision = precision;
  const Choice choice = select(graph, node, settings);
  ASSERT_TRUE(choice.ok() || precision == Precision::kExact) << choice.reason();
  if (!choice.ok()) return;
  const Lowered lowered = choice.lower();
  for (size_t i = all ? 0 : lowered.launches.size() - 1; i < lowered.launches.size(); ++i) {
    const Launch& launch = lowered.launches[i];
    const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
    const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
    const std::string what = describe(problem) + " launch " + std::to_string(i);
    ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
    if (arch != "sm_90a") continue;  // for whose registers shapes are chosen
    EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << what << "\n"
                                                                       << assembled.report;
    EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
    codegen::expect_estimated(what, launch.kernel, launch.threads, *settings.gpu, code, assembled);
  }
}

class PipelinedPtxOf : public testing::TestWithParam<DotForm> {};

TEST_P(PipelinedPtxOf, AssemblesWithinItsRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const DotForm& form = GetParam();
  const bool is_nvfp4 = form.name == "nvfp4";
  DotProblem problem{form, DType::kF16, {1024, 4096}, DotEnd::kBias};
  if (is_integer(form.element) && form.block != 64) problem.form.scale = problem.activation;
  const bool scales_blocks = form.name == "fp8_block" || form.name == "fp8_e5m2_block";
  expect_clean(problem, /*all=*/is_nvfp4 || scales_blocks);
  problem.activation = DType::kBF16;
  const bool differs = is_nvfp4 || form.element == DType::kBF16 || form.element == DType::kU8;
  if (differs) expect_clean(problem, /*all=*/false);
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, PipelinedPtxOf, testing::ValuesIn(dot_forms()),
                         [](const auto& form) { return std::string(form.param.name); });

const DotForm& form_named(std::string_view name) {
  return *std::ranges::find(dot_forms(), name, &DotForm::name);
}

struct RowsAndResult {
  DType rows, result;
};

// Other costs put other configs first: all that are ranked must fit, not the first alone.
TEST(PipelinedPtx, EveryRankFitsSharedMemory) {
  std::mt19937 random(1);
  for (const char* name : {"nvfp4", "fp8_block", "uint8_block_zero"}) {
    for (const auto& [rows, result] :
         {RowsAndResult{DType::kF16, DType::kF16}, RowsAndResult{DType::kF16, DType::kF32},
          RowsAndResult{DType::kF32, DType::kF32}}) {
      DotProblem problem{form_named(name), result, {1024, 4096}, DotEnd::kBias};
      problem.rows = rows;
      const ir::Graph graph = build_dot(problem, random);
      for (const char* arch : {"sm_90a", "sm_80", "sm_120a"}) {
        Settings settings = only_pipelined(arch);
        for (settings.tuning.rank = 0; settings.tuning.rank < 16; ++settings.tuning.rank) {
          const Choice choice = select(graph, graph.node(graph.order().front()), settings);
          if (!choice.ok()) continue;
          for (const Launch& launch : choice.lower().launches) {
            const codegen::GpuEstimate estimate =
                codegen::estimate_gpu_once(launch.kernel, launch.threads, *settings.gpu);
            EXPECT_LE(estimate.shared_bytes, estimate.shared_limit)
                << describe(problem) << " " << arch << " rank " << settings.tuning.rank;
          }
        }
      }
    }
  }
}

// Rows that were codes, in a model of f32.
TEST(PipelinedPtx, RowsOf16BitsUnderWideResults) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  DotProblem problem{form_named("fp8_tensor"), DType::kF32, {1024, 4096}, DotEnd::kBias};
  problem.rows = DType::kF16;
  for (const char* arch : {"sm_90a", "sm_80", "sm_120a"}) expect_clean(problem, true, arch);
  for (const char* name : {"int8_channel", "nvfp4", "uint8_block_zero"}) {
    problem.form = form_named(name);
    expect_clean(problem, /*all=*/false);
  }
  problem.form = form_named("mxfp8");
  problem.rows = DType::kBF16;
  expect_clean(problem, /*all=*/true);
}

// Rows in f32: three products with the same operand in registers.
TEST(PipelinedPtx, RowsInF32) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  DotProblem problem{form_named("nvfp4"), DType::kF32, {1024, 4096}, DotEnd::kBias};
  for (const char* arch : {"sm_90a", "sm_80", "sm_120a"}) expect_clean(problem, true, arch);
  for (const char* name : {"mxfp8", "fp8_channel", "fp8_square", "uint8_block_zero", "bf16"}) {
    problem.form = form_named(name);
    expect_clean(problem, /*all=*/false);
  }
}

// Scales that multiply sums of blocks smaller than a unit: products of some columns of a stage.
TEST(PipelinedPtx, SumsOfSmallBlocks) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  DotProblem problem{form_named("nvfp4_f32_scale"), DType::kF16, {1024, 4096}, DotEnd::kBias};
  expect_clean(problem, /*all=*/true);
  problem.form = form_named("nbits4_zero");
  problem.activation = DType::kF32;
  for (const char* arch : {"sm_90a", "sm_80", "sm_120a"}) expect_clean(problem, true, arch);
  problem.form = form_named("int2");
  expect_clean(problem, /*all=*/false);
}

// Scales and zero points that come from memory a stage ahead, and once for all of K.
TEST(PipelinedPtx, SidesApartOfUnits) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  DotProblem problem{form_named("uint4_zero"), DType::kF16, {1024, 4096}, DotEnd::kBias};
  problem.form.scale = DType::kF16;
  for (const int64_t block : {128, 0}) {
    problem.form.block = block;
    for (const char* arch : {"sm_90a", "sm_80", "sm_120a"}) expect_clean(problem, true, arch);
  }
  problem.activation = problem.form.scale = DType::kF32;  // scales of sums
  problem.form.block = 128;
  expect_clean(problem, /*all=*/true);
}

// Both operands in stages, rounded by TMA or by who multiplies.
TEST(PipelinedPtx, PlainF32AsTf32) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const DotEnd end : {DotEnd::kBias, DotEnd::kBody}) {
    const DotProblem problem{form_named("f32"), DType::kF32, {1024, 4096}, end};
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
      expect_clean(problem, /*all=*/true, arch, Precision::kTf32);
    }
  }
}

// Blocks of 64 in stages of 128 k: accumulators of both are in registers at once, 128 tokens are
// too many.
TEST(PipelinedPtx, ConfigsThatWouldSpillAreDroppedAndSaySo) {
  std::mt19937 random(1);
  const DotForm& form = form_named("fp8_e5m2_block");
  const ir::Graph graph = build_dot({form, DType::kF16, {1024, 4096}, DotEnd::kBias}, random);
  const ir::Node& node = graph.node(graph.order().front());
  const Settings settings = only_pipelined();
  const Lowered lowered = select(graph, node, settings).lower();
  const ConfigChoice& most = lowered.configs.back();
  EXPECT_EQ(most.chosen.text().find("tile 128x128,"), 0u) << most.chosen.text();
  EXPECT_NE(most.others.front().text().find("dropped, needs"), std::string::npos)
      << most.others.front().text();
  EXPECT_NE(most.others.front().text().find("registers, a thread has 232"), std::string::npos);
}

}  // namespace
}  // namespace tenon::kernels
