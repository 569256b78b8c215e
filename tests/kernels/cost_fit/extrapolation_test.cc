#include "kernels/cost_fit/extrapolation.h"

#include <gtest/gtest.h>

#include "codegen/arch_spec.h"

namespace tenon::kernels {
namespace {

const codegen::CostSource& source_of(std::string_view arch) {
  return codegen::arch_spec(arch).costs->source;
}

TEST(Extrapolation, TheCardThatWasFitted) {
  device::Description gpu = device::named_description("sm_90a");
  EXPECT_TRUE(extrapolated_machine(source_of("sm_90a"), gpu).empty());
  gpu.clock_mhz = 1980;
  EXPECT_TRUE(extrapolated_machine(source_of("sm_90a"), gpu).empty());
}

TEST(Extrapolation, AnotherCardOfTheArchitecture) {
  device::Description gpu = device::named_description("sm_90a");
  gpu.sm_count = 114;
  gpu.clock_mhz = 1755;
  EXPECT_EQ(extrapolated_machine(source_of("sm_90a"), gpu),
            (std::vector<std::string>{"114 SMs, fitted with 132", "1755 MHz, fitted at 1980"}));
}

TEST(Extrapolation, AnotherArchitecture) {
  for (const codegen::ArchSpec& spec : codegen::arch_specs()) {
    if (spec.name == "sm_90a" || spec.name == "sm_90") continue;
    const device::Description gpu = device::named_description(spec.name);
    const std::vector<std::string> texts = extrapolated_machine(spec.costs->source, gpu);
    ASSERT_FALSE(texts.empty()) << spec.name;
    EXPECT_EQ(texts[0], "nobody fitted constants for " + gpu.arch +
                            ": those of sm_90a (H200, 2026-11-15), bytes by the memory bandwidth "
                            "of " +
                            gpu.name);
  }
}

// The table repeats what the data sheets of kernels/device/specs say.
TEST(Extrapolation, BytesFollowTheDataSheets) {
  const device::Description h200 = device::named_description("sm_90a");
  const double known = codegen::arch_spec("sm_90a").costs->roofline.bytes;
  for (const codegen::ArchSpec& spec : codegen::arch_specs()) {
    if (spec.name == "sm_90") continue;
    const device::Description gpu = device::named_description(spec.name);
    const double times = gpu.memory_gb_s / gpu.sm_count / (h200.memory_gb_s / h200.sm_count);
    EXPECT_NEAR(spec.costs->roofline.bytes, known * times, 1e-6 * known) << spec.name;
    EXPECT_EQ(spec.costs->gemm.product, codegen::arch_spec("sm_90a").costs->gemm.product);
  }
}

TEST(Extrapolation, Sizes) {
  const codegen::CostSource& source = source_of("sm_90a");
  EXPECT_EQ(extrapolated_sizes(source, {}), "");
  EXPECT_EQ(extrapolated_sizes(source, {{"k", 512}, {"rows", 4096}, {"n", 1 << 20}}), "");
  EXPECT_EQ(extrapolated_sizes(source, {{"k", 256}}), "K 256 < 512");
  EXPECT_EQ(extrapolated_sizes(source, {{"k", 28672}, {"rows", 8192}}),
            "K 28672 > 14336, 8192 rows > 4096");
}

}  // namespace
}  // namespace tenon::kernels
