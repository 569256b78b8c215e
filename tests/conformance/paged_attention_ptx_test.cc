// The kernels of attention over pages as the assembler takes them, with TMA and without.
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

TEST(PagedAttentionPtx, AssemblesWithinItsRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const ir::Graph graph = ir::parse(R"(graph paged {
  input %q: f16[t,32,128]
  input %k: f16[t,8,128]
  input %v: f16[t,8,128]
  input %keys: f16[p,256,8,128]
  input %values: f16[p,256,8,128]
  input %rows: i64[t]
  input %positions: i64[t]
  input %table: i32[b,m]
  input %sinks: f16[32]
  %y: f16[t,4096], %keys_out: f16[p,256,8,128], %values_out: f16[p,256,8,128] = tenon::PagedAttention(%q, %k, %v, %keys, %values, %rows, %positions, %table, _, %sinks) {left_window=1000}
  output %y
  output %keys_out
  output %values_out
})");
  const ir::Node& node = graph.node(graph.order().front());
  for (const std::string arch : {"sm_80", "sm_90a"}) {
    Settings settings = assembled_settings();
    settings.gpu->arch = arch;
    settings.gpu->pipelines = arch == "sm_90a";
    const Lowered lowered = select(graph, node, settings).lower();
    EXPECT_EQ(lowered.launches.size(), 4u);
    for (const Launch& launch : lowered.launches) {
      const codegen::GpuCode code =
          codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
      const codegen::Assembled assembled = codegen::assemble(code, arch);
      ASSERT_EQ(assembled.status, 0) << launch.kernel.name << "\n" << assembled.report;
      EXPECT_TRUE(assembled.keeps_to_registers()) << assembled.report;
      codegen::expect_estimated(launch.kernel.name, launch.kernel, launch.threads, *settings.gpu,
                                code, assembled);
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
