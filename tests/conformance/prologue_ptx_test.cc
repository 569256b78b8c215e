// Products that compute a norm for themselves, as the assembler takes them for sm_90a.
#include <algorithm>

#include <gtest/gtest.h>

#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

struct Case {
  const char* norm;
  DType rows;
  std::vector<int64_t> columns;
  int64_t k;
  std::optional<int64_t> tokens = std::nullopt;
};

ir::Graph fused(const Case& wanted) {
  std::mt19937 random(1);
  ir::Graph graph;
  const ir::ValueId x = add_rows(graph, wanted.rows, wanted.k, wanted.tokens);
  const std::vector<std::byte> ones = random_tensor(wanted.rows, {wanted.k}, random).bytes();
  const ir::ValueId gamma =
      graph.add_constant("gamma", ir::Tensor::copy(wanted.rows, {wanted.k}, ones));
  const bool centred = wanted.norm == std::string_view("LayerNormalization");
  ir::ValueId rows = add_node(graph, wanted.norm, centred ? 17 : 23, {x, gamma}, wanted.rows);
  if (wanted.rows != DType::kF16) rows = add_node(graph, "Cast", 13, {rows}, DType::kF16);
  const auto form = std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  for (const int64_t n : wanted.columns) {
    const DotProblem problem{*form, DType::kF16, {n, wanted.k}, DotEnd::kAlpha};
    graph.add_output(add_dot(graph, rows, problem, random));
  }
  for (const char* pass :
       {"decompose", "fuse_epilogues", "merge_dots", "fuse_loops", "fuse_prologues"}) {
    graph = run_pass(pass, std::move(graph));
  }
  return graph;
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

class ProloguePtx : public testing::TestWithParam<Case> {};

TEST_P(ProloguePtx, FitsItsBlock) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const ir::Graph graph = fused(GetParam());
  const ir::Node& node = graph.node(graph.order().front());
  const Settings settings = assembled_settings();
  const Choice choice = select(graph, node, settings);
  ASSERT_TRUE(choice.ok()) << choice.reason();
  const Lowered lowered = choice.lower();
  const auto launch = std::ranges::find_if(lowered.launches, [](const Launch& one) {
    return one.kernel.name.starts_with("skinny_gemm");
  });
  ASSERT_NE(launch, lowered.launches.end());
  ASSERT_NE(lowered.configs[0].chosen.text().find("x in smem"), std::string::npos)
      << lowered.configs[0].chosen.text();
  const GpuCode code = codegen::compile_gpu(launch->kernel, launch->threads, *settings.gpu);
  const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
  const std::string what = lowered.configs[0].problem + ": " + lowered.configs[0].chosen.text();
  ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
  EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << assembled.report;
  EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
  codegen::expect_estimated(what, launch->kernel, launch->threads, *settings.gpu, code, assembled);
  // Weights never wait (PDL); the rows do, and what comes after them need not.
  const int waits = GetParam().tokens ? 2 : 1;  // in a loop over the rows, and behind it
  EXPECT_EQ(count(code.ptx, "griddepcontrol.wait"), waits);
}

// Without TMA all threads copy, after the rows are there.
TEST(ProloguesPtx, OtherArchitectures) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const ir::Graph graph = fused({"RMSNormalization", DType::kF16, {256, 128}, 2048});
  const ir::Node& node = graph.node(graph.order().front());
  for (const char* arch : {"sm_80", "sm_89", "sm_120a"}) {
    Settings settings = assembled_settings();
    settings.gpu->arch = arch;
    settings.gpu->shared_bytes = 99 << 10;
    const Choice choice = select(graph, node, settings);
    ASSERT_TRUE(choice.ok()) << arch << ": " << choice.reason();
    const Lowered lowered = choice.lower();
    const auto launch = std::ranges::find_if(lowered.launches, [](const Launch& one) {
      return one.kernel.name.starts_with("skinny_gemm");
    });
    ASSERT_NE(launch, lowered.launches.end());
    const GpuCode code = codegen::compile_gpu(launch->kernel, launch->threads, *settings.gpu);
    const Assembled assembled = codegen::assemble(code, arch);
    EXPECT_EQ(assembled.status, 0) << arch << "\n" << assembled.report;
    EXPECT_TRUE(assembled.keeps_to_registers()) << arch << "\n" << assembled.report;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Norms, ProloguePtx,
    testing::Values(Case{"RMSNormalization", DType::kF16, {1024, 256, 256}, 4096},
                    Case{"RMSNormalization", DType::kF32, {1024}, 8192},
                    Case{"LayerNormalization", DType::kF16, {1024, 1024}, 2048},
                    Case{"LayerNormalization", DType::kF32, {1024}, 3072},
                    Case{"LayerNormalization", DType::kF16, {1024}, 2048, 3}));

}  // namespace
}  // namespace tenon::kernels
