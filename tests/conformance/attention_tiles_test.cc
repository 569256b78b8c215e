// Attention's tiles against what a GPU has: every head size compiles, also for the least shared
// memory of all.
#include <gtest/gtest.h>

#include <string>

#include "codegen/compile.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/llvm/attention/gpu_candidates.h"

namespace tenon::kernels {
namespace {

ir::Graph attention_over(const std::string& type, int depth, const std::string& more) {
  const std::string width = std::to_string(depth);
  const auto heads = [&](const char* rows) { return type + "[b,2," + rows + "," + width + "]\n"; };
  return ir::parse("graph heads {\n  input %q: " + heads("q") + "  input %k: " + heads("t") +
                   "  input %v: " + heads("t") + "  %y: " + type + "[b,2,q," + width +
                   "] = tenon::Attention(%q, %k, %v) {kv_heads=2, " + more +
                   "q_heads=2}\n  output %y\n}\n");
}

void expect_all_compile(const std::string& more) {
  Settings settings;
  settings.gpu = codegen::GpuTarget{.arch = "sm_86", .shared_bytes = 99 << 10};
  const Candidate& flash = gpu_attention_candidates().back();
  for (const std::string type : {"f16", "f32"}) {
    for (const int depth : {8, 33, 80, 128, 256, 576}) {
      SCOPED_TRACE(type + " heads of " + std::to_string(depth));
      const ir::Graph graph = attention_over(type, depth, more);
      const ir::Node& node = graph.node(graph.order().front());
      ASSERT_TRUE(flash.plan(graph, node, settings).support.ok);
      const Lowered lowered = flash.plan(graph, node, settings).plan->lower();
      ASSERT_EQ(lowered.launches.size(), 2);  // few queries, many queries
      for (const Launch& launch : lowered.launches) {
        const codegen::GpuCode code =
            codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
        EXPECT_LE(code.shared_bytes, settings.gpu->shared_bytes);
        EXPECT_NE(code.ptx.find("mma.sync"), std::string::npos) << "no tensor cores";
      }
    }
  }
}

TEST(AttentionTiles, EveryHeadCompilesForTheSmallestGpu) { expect_all_compile(""); }

TEST(AttentionTiles, SoDoRoundedProbabilities) {
  expect_all_compile("probability_scale=0.002232143, probability_type=\"f16\", ");
}

}  // namespace
}  // namespace tenon::kernels
