// The launches that bring heads to their places, as the assembler takes them.
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

// A decoder's attention with all that new heads may need.
ir::Graph decoder(int depth, bool interleaved) {
  const std::string d = std::to_string(depth), angles = std::to_string(depth / 2);
  const std::string wide = std::to_string(32 * depth), narrow = std::to_string(8 * depth);
  const std::string cache = "f16[b,8,r," + d + "]", table = "f32[4096," + angles + "]";
  return ir::parse(
      "graph decoder {\n  input %q: f16[b,s," + wide + "]\n  input %k: f16[b,s," + narrow +
      "]\n  input %v: f16[b,s," + narrow + "]\n  input %pk: " + cache + "\n  input %pv: " + cache +
      "\n  input %lengths: i32[b]\n  input %cos: " + table + "\n  input %sin: " + table +
      "\n  input %qn: f16[" + d + "]\n  input %kn: f16[" + d + "]\n  %y: f16[b,s," + wide +
      "], %nk: " + cache + ", %nv: " + cache +
      " = tenon::Attention(%q, %k, %v, _, %pk, %pv, %lengths, _, %cos, %sin, _, %qn, %kn) "
      "{causal_top_left=1, " +
      (interleaved ? "interleaved=1, " : "") +
      "k_layout=\"bs(hd)\", kv_heads=8, q_heads=32, q_layout=\"bs(hd)\", v_layout=\"bs(hd)\", "
      "y_layout=\"bs(hd)\"}\n  output %y\n  output %nk\n  output %nv\n}\n");
}

bool moves_wide(const std::string& ptx) {
  return ptx.find("ld.global.v") != std::string::npos &&
         ptx.find("st.global.v") != std::string::npos;
}

TEST(PlaceHeadsPtx, AssemblesWithoutSpillsAndMovesSeveralElementsAtOnce) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const int depth : {64, 80, 128, 256}) {
    for (const bool interleaved : {false, true}) {
      const ir::Graph graph = decoder(depth, interleaved);
      const ir::Node& node = graph.node(graph.order().front());
      Settings settings = assembled_settings();
      settings.tuning.candidate = "flash";
      const Lowered lowered = select(graph, node, settings).lower();
      ASSERT_GE(lowered.launches.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {  // past keys, past values, new heads
        const Launch& launch = lowered.launches[i];
        SCOPED_TRACE(launch.kernel.name + ", heads of " + std::to_string(depth));
        EXPECT_EQ(launch.elidable_copy.has_value(), i < 2);
        const codegen::GpuCode code =
            codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
        const codegen::Assembled assembled = codegen::assemble(code, settings.gpu->arch);
        ASSERT_EQ(assembled.status, 0) << assembled.report;
        EXPECT_TRUE(assembled.keeps_to_registers()) << assembled.report;
        EXPECT_TRUE(moves_wide(code.ptx));
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
