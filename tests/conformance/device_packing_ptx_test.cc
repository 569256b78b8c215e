// Pack kernels as the assembler takes them: all in registers, for every architecture.
#include <algorithm>
#include <chrono>
#include <map>

#include <gtest/gtest.h>

#include "codegen/tile/text.h"
#include "kernels/device/description.h"
#include "kernels/llvm/scaled_dot/packing_launches.h"
#include "tests/codegen/assembler.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/kernels/llvm/dot_parts.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

// Each once, by the name of a form that it packs.
std::map<std::string, std::pair<std::string, codegen::Kernel>> pack_kernels() {
  std::map<std::string, std::pair<std::string, codegen::Kernel>> kernels;
  std::mt19937 random(1);
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF16, DType::kBF16}) {
      const DotProblem problem{form, activation, {130, 128}};
      const ir::Graph graph = build_dot(problem, random);
      const ir::Node node = graph.node(graph.order().front());
      const DotSections dots = plan_sections(graph, dot_parts(graph, {&node, 1}));
      if (!dots.support) continue;
      for (const DevicePacking& packing :
           {pack_units_on_device(graph, dots),
            dots.layout.sides_apart ? pack_sides_on_device(graph, dots) : DevicePacking{}}) {
        for (const DevicePacking::Piece& piece : packing.pieces) {
          kernels.try_emplace(codegen::print(*piece.kernel), describe(problem), *piece.kernel);
        }
      }
    }
  }
  return kernels;
}

class PackKernelPtx : public testing::TestWithParam<const char*> {};

TEST_P(PackKernelPtx, KeepsToRegisters) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  const codegen::GpuTarget target = device::named_description(GetParam()).target();
  const auto kernels = pack_kernels();
  EXPECT_GE(kernels.size(), 15u);
  for (const auto& [text, named] : kernels) {
    const auto& [what, kernel] = named;
    const auto start = std::chrono::steady_clock::now();
    const GpuCode code = codegen::compile_gpu(kernel, DevicePacking::kThreads, target);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const Assembled assembled = codegen::assemble(code, target.arch);
    ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
    EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
    printf("%-50s %3d registers, %lld bytes shared, compiled in %.2f s\n", what.c_str(),
           assembled.registers(), static_cast<long long>(code.shared_bytes), took.count());
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, PackKernelPtx,
                         testing::Values("sm_80", "sm_90a", "sm_100a", "sm_120a"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tenon::kernels
