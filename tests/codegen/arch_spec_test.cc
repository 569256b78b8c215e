#include "codegen/arch_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "codegen/passes/expand_math.h"
#include "codegen/target.h"

namespace tenon::codegen {
namespace {

using Feature = bool GpuFeatures::*;
constexpr Feature kFeatures[] = {
    &GpuFeatures::exp2,
    &GpuFeatures::f16_arithmetic,
    &GpuFeatures::bf16_arithmetic,
    &GpuFeatures::fp8_conversions,
    &GpuFeatures::fp4_conversions,
    &GpuFeatures::stmatrix,
    &GpuFeatures::pdl,
    &GpuFeatures::tma,
    &GpuFeatures::clusters,
    &GpuFeatures::setmaxnreg,
    &GpuFeatures::wgmma,
    &GpuFeatures::block_scaled_mma,
    &GpuFeatures::tensor_memory,
};
static_assert(sizeof(GpuFeatures) == std::size(kFeatures), "a feature is missing above");

TEST(ArchSpecTest, EveryArchitectureHasOneRow) {
  const std::vector<std::string> expected = {"sm_80",   "sm_86",   "sm_87",   "sm_89",
                                             "sm_90",   "sm_90a",  "sm_100a", "sm_103a",
                                             "sm_110a", "sm_120a", "sm_121a"};
  EXPECT_EQ(gpu_archs(), expected);
  for (const std::string& arch : gpu_archs()) EXPECT_EQ(arch_spec(arch).name, arch);
  EXPECT_THROW(arch_spec("sm_75"), UserError);
}

TEST(ArchSpecTest, CodeUsesOnlyWhatThereIs) {
  for (const ArchSpec& spec : arch_specs()) {
    for (const Feature feature : kFeatures) {
      EXPECT_TRUE(spec.has.*feature || !(spec.uses.*feature)) << spec.name;
    }
  }
}

TEST(ArchSpecTest, FeaturesAreConsistent) {
  for (const ArchSpec& spec : arch_specs()) {
    for (const GpuFeatures& features : {spec.has, spec.uses}) {
      EXPECT_TRUE(features.tma || !features.wgmma) << spec.name << ": wgmma reads what TMA loads";
      EXPECT_TRUE(features.setmaxnreg || !features.wgmma) << spec.name;
      EXPECT_TRUE(features.pdl || !features.tma) << spec.name;
      EXPECT_TRUE(features.block_scaled_mma || !features.tensor_memory) << spec.name;
      EXPECT_FALSE(features.wgmma && features.tensor_memory) << spec.name;
    }
    // The emitter knows only whole roles.
    EXPECT_EQ(spec.specialises_warps(), spec.uses.tma) << spec.name;
    EXPECT_EQ(spec.specialises_warps(), spec.uses.wgmma) << spec.name;
  }
}

// As long as nobody writes kernels for Blackwell.
TEST(ArchSpecTest, HoppersWayIsUsedOnSm90aAlone) {
  for (const ArchSpec& spec : arch_specs()) {
    const bool is_hopper = spec.name == "sm_90a";
    for (const Feature feature : {&GpuFeatures::stmatrix, &GpuFeatures::pdl, &GpuFeatures::tma,
                                  &GpuFeatures::setmaxnreg, &GpuFeatures::wgmma}) {
      EXPECT_EQ(spec.uses.*feature, is_hopper) << spec.name;
    }
    for (const Feature feature : {&GpuFeatures::clusters, &GpuFeatures::block_scaled_mma,
                                  &GpuFeatures::tensor_memory, &GpuFeatures::fp4_conversions}) {
      EXPECT_FALSE(spec.uses.*feature) << spec.name;
    }
  }
}

TEST(ArchSpecTest, MathFollowsTheTable) {
  const std::set<std::string> before_90 = {"sm_80", "sm_86", "sm_87", "sm_89"};
  for (const std::string& arch : gpu_archs()) {
    const bool from_90 = !before_90.contains(arch);
    const MathInstructions math = gpu_math(arch);
    EXPECT_TRUE(math.exp2 && math.f16 && !math.libm) << arch;
    EXPECT_EQ(math.bf16, from_90) << arch;
    EXPECT_EQ(math.f8e4m3fn_to_f16, from_90 || arch == "sm_89") << arch;
  }
}

TEST(ArchSpecTest, DevicesGetTheBestRow) {
  for (const ArchSpec& spec : arch_specs()) {
    const ArchSpec& found = arch_spec_of_device(spec.compute_major, spec.compute_minor);
    EXPECT_EQ(found.name, spec.name == "sm_90" ? "sm_90a" : spec.name);
  }
  EXPECT_EQ(arch_spec_of_device(8, 8).name, "sm_80");
  EXPECT_EQ(arch_spec_of_device(9, 1).name, "sm_90");
  EXPECT_EQ(arch_spec_of_device(10, 1).name, "sm_90");
  EXPECT_EQ(arch_spec_of_device(12, 2).name, "sm_90");
  EXPECT_EQ(arch_spec_of_device(13, 0).name, "sm_90");
}

TEST(ArchSpecTest, CostsSayWhereTheyWereMeasured) {
  for (const ArchSpec& spec : arch_specs()) {
    ASSERT_NE(spec.costs, nullptr) << spec.name;
    EXPECT_EQ(spec.has_measured_costs(), spec.name == "sm_90a") << "only an H200 was there";
    EXPECT_TRUE(arch_spec(spec.costs->source.arch).has_measured_costs());
    EXPECT_STREQ(spec.costs->source.card, "H200");
  }
}

TEST(ArchSpecTest, AnSmHoldsACta) {
  for (const ArchSpec& spec : arch_specs()) {
    EXPECT_LT(spec.sm.shared_bytes_per_cta, spec.sm.shared_bytes) << spec.name;
    EXPECT_GE(spec.sm.threads, GpuTarget{}.threads) << spec.name;
    EXPECT_GE(spec.sm.registers / spec.sm.threads, 32) << spec.name;
  }
  EXPECT_EQ(GpuTarget{}.shared_bytes, arch_spec(GpuTarget{}.arch).sm.shared_bytes_per_cta);
}

}  // namespace
}  // namespace tenon::codegen
