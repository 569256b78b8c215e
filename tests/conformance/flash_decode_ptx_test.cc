// The kernel of split keys as the assembler takes it for sm_90a.
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/device/description.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

// Queries of heads of `depth` elements on a cache of open length.
ir::Graph decoder(int q_heads, int kv_heads, int depth, const std::string& rules,
                  const std::string& queries = "1") {
  const auto tensor = [&](int heads, const std::string& rows) {
    return "f16[b," + std::to_string(heads) + "," + rows + "," + std::to_string(depth) + "]\n";
  };
  return ir::parse("graph decode {\n  input %q: " + tensor(q_heads, queries) +
                   "  input %k: " + tensor(kv_heads, "k") + "  input %v: " + tensor(kv_heads, "k") +
                   "  input %lengths: i32[b]\n  %y: f16[b," + std::to_string(q_heads) + "," +
                   queries + "," + std::to_string(depth) +
                   "] = tenon::Attention(%q, %k, %v, _, _, _, %lengths) {" + rules +
                   "kv_heads=" + std::to_string(kv_heads) + ", q_heads=" + std::to_string(q_heads) +
                   "}\n  output %y\n}\n");
}

Launch lowered(const ir::Graph& graph, const Settings& settings) {
  const ir::Node& node = graph.node(graph.order().front());
  Lowered lowered = select(graph, node, settings).lower();
  EXPECT_EQ(lowered.launches.size(), 1u);
  return std::move(lowered.launches.front());
}

// Between two waits of those who compute, in the loop over stages.
std::string loop_of(const std::string& ptx) {
  const size_t first = ptx.find("ldmatrix"), last = ptx.rfind("ldmatrix");
  return ptx.substr(first, last - first);
}

TEST(FlashDecodePtx, AssemblesWithinItsRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const int depth : {64, 96, 128, 256}) {
    for (int rank = 0; rank < 4; ++rank) {
      Settings settings = assembled_settings();
      settings.tuning.candidate = "flash_decode";
      settings.tuning.rank = rank;
      const Launch launch = lowered(decoder(32, 8, depth, "causal=1, "), settings);
      const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
      const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
      const std::string what =
          "heads of " + std::to_string(depth) + ", shape " + std::to_string(rank);
      ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
      EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << assembled.report;
      EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
      EXPECT_LE(code.shared_bytes, settings.gpu->shared_bytes) << what;
      codegen::expect_estimated(what, launch.kernel, launch.threads, *settings.gpu, code,
                                assembled);
    }
  }
}

// Whatever is merged: scratch stands beside the rings.
TEST(FlashDecodePtx, EveryHeadFitsSharedMemory) {
  Settings settings = assembled_settings();
  settings.tuning.candidate = "flash_decode";
  for (const int depth : {64, 128, 256}) {
    for (const int group : {1, 4, 16}) {
      const ir::Graph graph = decoder(2 * group, 2, depth, "", "q");
      const ir::Node& node = graph.node(graph.order().front());
      const Lowered lowered = select(graph, node, settings).lower();
      for (const Launch& launch : lowered.launches) {
        if (launch.kernel.name.find("decode") == std::string::npos) continue;
        const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
        EXPECT_LE(code.shared_bytes, settings.gpu->shared_bytes) << depth << " " << group;
      }
    }
  }
}

// A step as one launch: past is fetched before the wait of PDL, the token read after.
void expect_past_fetched_first(const std::string& mask, const std::string& norms) {
  const ir::Graph graph = ir::parse(R"(graph step {
  input %x: f16[b,4096]
  input %k: f16[b,8,1,128]
  input %v: f16[b,8,1,128]
  input %past_k: f16[b,8,p,128]
  input %past_v: f16[b,8,p,128]
  input %lengths: i32[b]
  input %cos: f16[4096,64]
  input %sin: f16[4096,64]
  input %w: f16[128]
  input %mask: bool[b,1,1,p]
  %q: f16[b,32,1,128] = Reshape(%x)
  %y: f16[b,32,1,128], %present_k: f16[b,8,p,128], %present_v: f16[b,8,p,128] = tenon::Attention(%q, %k, %v, )" +
                                    mask + R"(, %past_k, %past_v, %lengths, _, %cos, %sin)" +
                                    norms + R"() {causal=1, kv_heads=8, q_heads=32}
  output %y
  output %present_k
  output %present_v
})");
  Settings settings = assembled_settings();
  settings.tuning.candidate = "flash_decode";
  const ir::Node& node = graph.node(graph.order().back());
  Lowered lowered = select(graph, node, settings).lower();
  Launch& launch = lowered.launches.back();
  for (codegen::Parameter& parameter : launch.kernel.parameters) {
    for (const char* known : {"lengths", "q_norm", "k_norm"}) {
      parameter.constant |= parameter.name == known;
    }
  }
  const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
  // Who computes has the wait of PDL, who copies has not.
  const std::string wait = "griddepcontrol.wait";
  ASSERT_NE(code.ptx.find(wait), std::string::npos);
  EXPECT_EQ(code.ptx.find(wait), code.ptx.rfind(wait));
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
  ASSERT_EQ(assembled.status, 0) << assembled.report;
  EXPECT_TRUE(assembled.keeps_to_registers()) << assembled.report;
  codegen::expect_estimated("a step of decoding", launch.kernel, launch.threads, *settings.gpu,
                            code, assembled);
}

TEST(FlashDecodePtx, PastIsFetchedBeforeTheTokenIsThere) { expect_past_fetched_first("_", ""); }

TEST(FlashDecodePtx, AlsoWhereTheTokenIsNormedOrMasked) {
  expect_past_fetched_first("_", ", _, %w, %w");
  expect_past_fetched_first("%mask", ", _, %w, %w");
}

// Warps only meet when all keys are seen.
TEST(FlashDecodePtx, NoBarrierStandsInTheLoop) {
  Settings settings = assembled_settings();
  settings.tuning.candidate = "flash_decode";
  const Launch launch = lowered(decoder(32, 8, 128, "causal=1, "), settings);
  const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
  const std::string loop = loop_of(code.ptx);
  EXPECT_NE(loop.find("ldmatrix.sync.aligned.m8n8.x4.trans"), std::string::npos);
  EXPECT_NE(loop.find("mma.sync"), std::string::npos);
  EXPECT_NE(loop.find("ex2.approx"), std::string::npos);
  EXPECT_EQ(loop.find("bar.sync"), std::string::npos);
  EXPECT_EQ(loop.find("st.shared"), std::string::npos);
}

// Decode and prefill, by whichever kernel the architecture has room for.
TEST(FlashDecodePtx, OtherArchitecturesAssembleToo) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const char* arch : {"sm_80", "sm_89", "sm_100a", "sm_120a"}) {
    Settings settings = assembled_settings();
    settings.gpu = device::named_description(arch).target();
    for (const char* queries : {"1", "q"}) {
      const ir::Graph graph = decoder(32, 8, 128, "causal=1, ", queries);
      const ir::Node& node = graph.node(graph.order().front());
      const Lowered lowered = select(graph, node, settings).lower();
      for (const Launch& launch : lowered.launches) {
        const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
        const Assembled assembled = codegen::assemble(code, arch);
        EXPECT_EQ(assembled.status, 0) << arch << ", queries " << queries << assembled.report;
        EXPECT_LE(code.shared_bytes, settings.gpu->shared_bytes) << arch;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
