// Attention over caches of codes as the assembler takes it for sm_90a: a step reads codes straight
// from the cache and dequantises them in registers, a prefill dequantises them once before it.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

// As many tokens as %q has rows, behind a cache of open length.
ir::Graph decoder(const std::string& type, const std::string& codes, int depth, bool per_channel,
                  const std::string& tokens) {
  const std::string stored = codes == "i4" ? "u8" : codes;
  const std::string width = std::to_string(codes == "i4" ? depth / 2 : depth);
  const std::string size = std::to_string(depth);
  const std::string cache = stored + "[b,8,p," + width + "]";
  const std::string scale = per_channel ? "f32[1,8,1," + size + "]" : "f32[1]";
  const std::string table = type + "[4096," + std::to_string(depth / 2) + "]";
  const auto heads = [&](const std::string& count) {
    return type + "[b," + count + "," + tokens + "," + size + "]";
  };
  return ir::parse(
      "graph coded {\n  input %q: " + heads("32") + "\n  input %k: " + heads("8") +
      "\n  input %v: " + heads("8") + "\n  input %past_k: " + cache +
      "\n  input %past_v: " + cache + "\n  input %lengths: i32[b]\n  input %cos: " + table +
      "\n  input %sin: " + table + "\n  input %k_scale: " + scale + "\n  input %v_scale: " + scale +
      "\n  %y: " + heads("32") + ", %present_k: " + cache + ", %present_v: " + cache +
      " = tenon::Attention(%q, %k, %v, _, %past_k, %past_v, %lengths, _, %cos, %sin, _, _, _, "
      "%k_scale, %v_scale) {cache_type=\"" +
      codes +
      "\", causal_top_left=1, kv_heads=8, q_heads=32}\n  output %y\n  output %present_k\n"
      "  output %present_v\n}\n");
}

Lowered lowered(const ir::Graph& graph, const Settings& settings) {
  const ir::Node& node = graph.node(graph.order().front());
  return select(graph, node, settings).lower();
}

Settings flash_decode(int rank = 0) {
  Settings settings = assembled_settings();
  settings.tuning.candidate = "flash_decode";
  settings.tuning.rank = rank;
  return settings;
}

std::vector<std::string> launches(const Lowered& lowered) {
  std::vector<std::string> names;
  for (const Launch& launch : lowered.launches) names.push_back(launch.kernel.name);
  return names;
}

void expect_assembled(const std::string& what, const Launch& launch, const Settings& settings) {
  const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
  const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
  ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
  EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << assembled.report;
  EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
  EXPECT_LE(code.shared_bytes, settings.gpu->shared_bytes) << what;
  codegen::expect_estimated(what, launch.kernel, launch.threads, *settings.gpu, code, assembled);
}

TEST(CodedCachePtx, DecodeReadsCodesAndPrefillDequantisesThemOnce) {
  for (const std::string codes : {"i8", "f8e4m3fn", "i4"}) {
    EXPECT_EQ(launches(lowered(decoder("f16", codes, 128, true, "1"), flash_decode())),
              (std::vector<std::string>{"copy_past", "copy_past", "flash_decode"}))
        << codes;
    EXPECT_EQ(launches(lowered(decoder("f16", codes, 128, true, "64"), flash_decode())),
              (std::vector<std::string>{"copy_past", "copy_past", "place_heads", "append_codes",
                                        "dequantize_cache", "append_codes", "dequantize_cache",
                                        "prefill_attention"}))
        << codes;
  }
}

TEST(CodedCachePtx, StepsAssembleWithinTheirRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const std::string codes : {"i8", "f8e4m3fn", "i4"}) {
    for (const auto& [type, depth, rank] : {std::tuple{"f16", 64, 0},
                                            {"f16", 128, 0},
                                            {"f16", 128, 1},
                                            {"f16", 128, 2},
                                            {"f16", 96, 0},
                                            {"bf16", 128, 0}}) {
      const ir::Graph graph = decoder(type, codes, depth, true, "1");
      const Lowered step = lowered(graph, flash_decode(rank));
      expect_assembled(codes + " " + type + " heads of " + std::to_string(depth) + ", shape " +
                           std::to_string(rank),
                       step.launches.back(), flash_decode(rank));
    }
  }
}

// What stands between the stages and the products is arithmetic: nothing goes through memory again.
TEST(CodedCachePtx, CodesBecomeOperandsInRegisters) {
  for (const std::string codes : {"i8", "f8e4m3fn", "i4"}) {
    const Lowered step = lowered(decoder("f16", codes, 128, false, "1"), flash_decode());
    const Launch& launch = step.launches.back();
    const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *flash_decode().gpu);
    const std::string& ptx = code.ptx;
    // Lanes read eight keys at once, or words of four.
    for (const codegen::TmaDescriptor& descriptor : code.tma_descriptors) {
      EXPECT_TRUE(descriptor.swizzled) << codes;
    }
    const size_t first = ptx.find("mma.sync"), last = ptx.rfind("mma.sync");
    ASSERT_NE(first, std::string::npos);
    const std::string loop = ptx.substr(first, last - first);
    EXPECT_EQ(loop.find("st.shared"), std::string::npos) << codes;
    EXPECT_EQ(loop.find("ldmatrix"), std::string::npos) << codes;
  }
}

TEST(CodedCachePtx, EverythingAroundAPrefillAssembles) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const std::string codes : {"i8", "f8e4m3fn", "i4"}) {
    const Settings settings = flash_decode();
    for (const Launch& launch :
         lowered(decoder("f16", codes, 128, true, "64"), settings).launches) {
      if (launch.kernel.name == "prefill_attention") continue;  // has tests of its own
      expect_assembled(codes + " " + launch.kernel.name, launch, settings);
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
