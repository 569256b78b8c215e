// Small kernels whose registers and shared memory can be counted by hand. The reports of the
// assembler are held against estimates in the ptx group.
#include "codegen/estimate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/compile.h"
#include "codegen/tile/builder.h"

namespace tenon::codegen {
namespace {

constexpr int kThreads = 32;

int live(const Kernel& kernel) {
  return live_registers(kernel, assign_layouts(kernel, kThreads), kThreads);
}

// Four registers of each thread.
ValueId load(Builder& b, ValueId buffer) { return b.load({buffer, b.index(0)}, {4 * kThreads}); }

TEST(EstimateTest, TilesLiveUntilTheirLastUse) {
  Builder b("sums");
  ValueId x = b.buffer("x", DType::kF32);
  ValueId first = load(b, x), second = load(b, x);
  ValueId sum = b.add(first, second);  // `second` ends here
  ValueId both = b.add(sum, first), third = load(b, x);
  ValueId all = b.add(both, third);
  b.store({x, b.index(0)}, all);
  EXPECT_EQ(live(b.finish()), 8);
}

TEST(EstimateTest, AChainTakesTheRegistersOfItsOperand) {
  Builder b("chain");
  ValueId x = b.buffer("x", DType::kF32), value = load(b, x);
  for (int i = 0; i < 9; ++i) value = b.unary(Fn::kAbs, value);
  b.store({x, b.index(0)}, value);
  EXPECT_EQ(live(b.finish()), 4);
}

TEST(EstimateTest, WideElementsTakeTwoAndConstantsNone) {
  Builder b("wide");
  ValueId x = b.buffer("x", DType::kF64);
  ValueId value = b.add(load(b, x), b.constant(DType::kF64, 3, {4 * kThreads}));
  b.store({x, b.index(0)}, value);
  EXPECT_EQ(live(b.finish()), 8);
}

TEST(EstimateTest, WhatALoopUsesLivesThroughIt) {
  Builder b("loop");
  ValueId x = b.buffer("x", DType::kF32), kept = load(b, x);
  ValueId zero = b.constant(DType::kF32, 0, {4 * kThreads});
  auto sums = b.loop(b.index(0), b.index(8), b.index(1), {zero},
                     [&](ValueId, std::span<const ValueId> carried) {
                       return std::vector{b.add(carried[0], b.mul(kept, load(b, x)))};
                     });
  b.store({x, b.index(0)}, sums[0]);
  EXPECT_EQ(live(b.finish()), 12);  // the sum, what is kept, what is loaded
}

TEST(EstimateTest, RegistersAreDealtAnewWhereAWarpgroupCopies) {
  const SmLimits& sm = arch_spec("sm_90a").sm;
  EXPECT_EQ(share_registers(sm, 64, 256, 128).computing, 168);
  EXPECT_FALSE(share_registers(sm, 64, 256, 128).dealt_anew);
  EXPECT_EQ(share_registers(sm, 170, 256, 128).computing, 232);
  EXPECT_TRUE(share_registers(sm, 170, 256, 128).dealt_anew);
  EXPECT_FALSE(share_registers(sm, 170, 256, 32).dealt_anew) << "a warp alone cannot give any back";
  EXPECT_EQ(share_registers(sm, 10, 128, 0).computing, 255);
  EXPECT_EQ(share_registers(sm, 10, 256, 32).computing, 168)
      << "one scheduler has three of nine warps";
  EXPECT_EQ(registers_with(sm, 2, 288), 96);
  EXPECT_EQ(registers_with(sm, 1, 544), 96);
}

TEST(EstimateTest, TooManyRegistersDoNotFit) {
  Builder b("large");
  ValueId x = b.buffer("x", DType::kF32);
  ValueId tile = b.load({x, b.index(0)}, {256 * kThreads});
  b.store({x, b.index(0)}, b.unary(Fn::kAbs, tile));
  GpuEstimate estimate = estimate_gpu(b.finish(), kThreads, {});
  EXPECT_EQ(estimate.live_registers, 256);
  EXPECT_EQ(estimate.register_limit, 255);
  Support fits = estimate.fits();
  EXPECT_FALSE(fits);
  EXPECT_NE(fits.reason.find("registers, a thread has 255"), std::string::npos) << fits.reason;
}

TEST(EstimateTest, TooMuchSharedMemoryDoesNotFit) {
  GpuTarget target;
  target.shared_bytes = 48 << 10;
  Builder b("scratch");
  ValueId x = b.buffer("x", DType::kF32), kept = b.alloc(DType::kF32, 13 << 10);
  b.store({kept, b.index(0)}, load(b, x));
  b.store({x, b.index(0)}, load(b, kept));
  Kernel kernel = b.finish();
  GpuEstimate estimate = estimate_gpu(kernel, kThreads, target);
  EXPECT_EQ(estimate.shared_bytes, 52 << 10);
  EXPECT_EQ(estimate.fits().reason, "needs 53248 bytes of shared memory, a CTA has 49152");
  EXPECT_THROW(compile_gpu(kernel, kThreads, target), UserError);
}

}  // namespace
}  // namespace tenon::codegen
