// The table of architectures against the assembler: what it accepts is what they have.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "codegen/arch_spec.h"
#include "codegen/target.h"
#include "tests/codegen/assembler.h"

namespace tenon::codegen {
namespace {

struct Probe {
  bool GpuFeatures::*feature;
  const char* instructions;  // any of them
  const char* or_else = nullptr;
};

constexpr Probe kProbes[] = {
    {&GpuFeatures::exp2, "ex2.approx.f32 f1, f1;"},
    {&GpuFeatures::f16_arithmetic, "add.rn.f16x2 r2, r2, r3;"},
    {&GpuFeatures::bf16_arithmetic, "add.rn.bf16x2 r2, r2, r3;"},
    {&GpuFeatures::fp8_conversions, "cvt.rn.f16x2.e4m3x2 r2, h1;"},
    {&GpuFeatures::fp4_conversions, "mov.b16 {b0, b1}, h1; cvt.rn.f16x2.e2m1x2 r2, b0;"},
    {&GpuFeatures::stmatrix, "stmatrix.sync.aligned.m8n8.x1.shared.b16 [r1], {r2};"},
    {&GpuFeatures::pdl, "griddepcontrol.wait;"},
    {&GpuFeatures::tma,
     "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
     "[r1], [d2, {r2, r3}], [r1];"},
    {&GpuFeatures::clusters, "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"},
    {&GpuFeatures::setmaxnreg, "setmaxnreg.dec.sync.aligned.u32 40;"},
    {&GpuFeatures::wgmma, "wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned;"},
    {&GpuFeatures::block_scaled_mma,
     "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
     ".f32.e4m3.e4m3.f32.ue8m0 {f1, f2, f3, f4}, {r2, r2, r2, r2}, {r3, r3}, "
     "{f1, f1, f1, f1}, r2, {0, 0}, r3, {0, 0};",
     "setp.eq.u32 q, r2, 0; tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X "
     "[r2], d3, d3, r2, [r2], [r2], q;"},
    {&GpuFeatures::tensor_memory,
     "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r1], 32;"},
};

std::string kernel(const ArchSpec& spec, std::string_view instructions,
                   std::string_view directives = "") {
  return fmt::format(R"(.version 9.0
.target {}
.address_size 64
.shared .align 1024 .b8 memory[2048];
.visible .entry probe(.param .u64 out, .param .align 64 .b8 map[128]) {}
{{
  .reg .b8 b<2>; .reg .b16 h<2>; .reg .b32 r<4>; .reg .b64 d<4>; .reg .f32 f<5>; .reg .pred q;
  ld.param.u64 d1, [out]; mov.u64 d2, map; mov.u64 d3, 0;
  mov.u32 r1, memory; mov.u32 r2, 0; mov.u32 r3, 0; mov.b16 h1, 0; mov.f32 f1, 0f00000000;
  {}
  st.global.u32 [d1], r2;
  st.global.f32 [d1], f1;
  ret;
}}
)",
                     spec.name, directives, instructions);
}

Output assembled(const ArchSpec& spec, const std::string& text) {
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("tenon_arch_spec_{}.ptx", getpid());
  std::ofstream(file) << text;
  Output made =
      run_tool(fmt::format("{} -arch={} -o /dev/null {}", assembler(), spec.name, file.string()));
  std::filesystem::remove(file);
  return made;
}

class ArchSpecPtx : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (assembler().empty()) GTEST_SKIP() << "needs ptxas";
  }
};

TEST_P(ArchSpecPtx, HasWhatTheAssemblerAccepts) {
  const ArchSpec& spec = arch_spec(GetParam());
  for (const Probe& probe : kProbes) {
    Output made = assembled(spec, kernel(spec, probe.instructions));
    if (made.status != 0 && probe.or_else) made = assembled(spec, kernel(spec, probe.or_else));
    EXPECT_EQ(made.status == 0, spec.has.*probe.feature) << probe.instructions << made.text;
    // Refused for being of another architecture, not for a mistake of the probe.
    EXPECT_TRUE(made.status == 0 || has(made.text, "not supported|requires|target")) << made.text;
  }
}

// The assembler ignores, and says so, how many CTAs an SM should hold where it cannot.
TEST_P(ArchSpecPtx, AnSmHoldsItsThreads) {
  const ArchSpec& spec = arch_spec(GetParam());
  for (const int more : {0, 64}) {
    const int threads = spec.sm.threads / 2 + more;
    if (threads > 1024) continue;  // of a CTA
    const std::string two = fmt::format(".maxntid {} .minnctapersm 2", threads);
    const Output made = assembled(spec, kernel(spec, "", two));
    EXPECT_EQ(made.status, 0) << made.text;
    EXPECT_EQ(has(made.text, "out of range"), more > 0) << made.text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ArchSpecPtx, testing::ValuesIn(gpu_archs()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tenon::codegen
