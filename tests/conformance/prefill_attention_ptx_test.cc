// The kernel for many queries as the assembler takes it for sm_90a.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

struct Compiled {
  Launch launch;
  GpuCode code;
};

Settings only_prefill() {
  Settings settings = assembled_settings();
  settings.tuning.candidate = "prefill";
  return settings;
}

Compiled compiled(int depth, const std::string& type, const std::string& rules,
                  const std::string& mask = "") {
  const Settings settings = only_prefill();
  const ir::Graph graph =
      ir::parse(fmt::format(R"(graph prefill {{
  input %q: {1}[b,8,q,{0}]
  input %k: {1}[b,2,t,{0}]
  input %v: {1}[b,2,t,{0}]
  input %lengths: i32[b]
  {3}
  %y: {1}[b,8,q,{0}] = tenon::Attention(%q, %k, %v, {4}, _, _, %lengths) {{{2}q_heads=8, kv_heads=2}}
  output %y
}})",
                            depth, type, rules, mask.empty() ? "" : "input %mask: " + mask,
                            mask.empty() ? "_" : "%mask"));
  const ir::Node& node = graph.node(graph.order().front());
  Lowered lowered = select(graph, node, settings).lower();
  Launch launch = std::move(lowered.launches.back());
  EXPECT_EQ(launch.kernel.name, "prefill_attention");
  GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
  return {std::move(launch), std::move(code)};
}

void expect_clean(int depth, const std::string& type, const std::string& rules,
                  const std::string& mask = "") {
  const Compiled kernel = compiled(depth, type, rules, mask);
  const codegen::GpuTarget target = *only_prefill().gpu;
  const Assembled assembled = codegen::assemble(kernel.code, target.arch);
  const std::string what = fmt::format("{} heads of {}, {}{}", type, depth, rules, mask);
  ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
  EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << what << "\n"
                                                                     << assembled.report;
  EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
  codegen::expect_estimated(what, kernel.launch.kernel, kernel.launch.threads, target, kernel.code,
                            assembled);
}

TEST(PrefillAttentionPtx, AssemblesWithinItsRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const int depth : {64, 80, 96, 128, 192, 256}) expect_clean(depth, "f16", "causal=1, ");
  expect_clean(128, "bf16", "causal=1, left_window=1000, ");
  expect_clean(128, "f16", "");
  expect_clean(256, "f16", "causal=1, softcap=30.0, ");
  expect_clean(128, "f16", "causal=1, ", "bool[b,1,q,t]");
  expect_clean(128, "bf16", "", "f32[b,8,q,t]");
  expect_clean(64, "f16", "", "f16[b,1,1,t]");
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

// A step of a loop with two products: what stands before the wait for the first, and then before
// that for the second.
struct Step {
  std::string products, softmax;
};

std::vector<Step> steps_of(const std::string& ptx) {
  const std::string first = "wgmma.wait_group.sync.aligned 1;";
  std::vector<Step> steps;
  for (size_t at = ptx.find(first); at != std::string::npos; at = ptx.find(first, at + 1)) {
    const size_t begin = ptx.rfind("mbarrier.try_wait", at);
    const size_t end = ptx.find("wgmma.wait_group.sync.aligned 0;", at);
    steps.push_back({ptx.substr(begin, at - begin), ptx.substr(at, end - at)});
  }
  return steps;
}

// Of the loops the one with the fewest comparisons is that whose keys all queries see: both
// products begin, and softmax stands between the waits.
TEST(PrefillAttentionPtx, SoftmaxRunsBesideTheSecondProduct) {
  const std::vector<Step> steps = steps_of(compiled(128, "f16", "causal=1, ").code.ptx);
  ASSERT_EQ(steps.size(), 2U);
  const auto& [products, softmax] = *std::ranges::min_element(
      steps, {}, [](const Step& step) { return count(step.softmax, "setp"); });
  EXPECT_EQ(count(products, "m64n128k16"), 16) << products;
  EXPECT_EQ(count(softmax, "ex2.approx.ftz.f32"), 64);
  EXPECT_EQ(count(softmax, "bar.sync"), 0);
  EXPECT_LE(count(softmax, "setp"), 8) << "elements are compared in tiles that lie wholly inside";
  EXPECT_EQ(count(softmax, "cvt.rn.f16x2.f32"), 0) << "weights are rounded while products read";
}

// Where rows are aligned; 64 of 2 bytes a thread.
TEST(PrefillAttentionPtx, ResultsLeaveBySixteenBytes) {
  const std::string ptx = compiled(128, "f16", "causal=1, ").code.ptx;
  EXPECT_EQ(count(ptx, "st.global.v4"), 8) << ptx;
}

}  // namespace
}  // namespace tenon::kernels
