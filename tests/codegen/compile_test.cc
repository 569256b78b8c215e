// The way through: builder, compiler, call.
#include "codegen/compile.h"

#include <gtest/gtest.h>

#include <numeric>

#include "codegen/tile/text.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

// One row per task; the last columns are masked.
Kernel row_sum() {
  Builder b("row_sum");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId n = b.index_parameter("n");
  ValueId row = b.mul(b.task(), n);
  auto sums = b.loop(b.index(0), n, b.index(16), {b.constant(DType::kF32, 0, {16})},
                     [&](ValueId i, std::span<const ValueId> carried) -> std::vector<ValueId> {
                       ValueId part = b.load({.buffer = x, .offset = b.add(row, i),
                                              .strides = {}, .extents = {b.sub(n, i)}}, {16});
                       return {b.add(carried[0], part)};
                     });
  b.store({.buffer = y, .offset = b.task(), .strides = {}, .extents = {}},
          b.reduce(Fn::kAdd, sums[0], 0));
  return b.finish();
}

TEST(CompileTest, RowSumWithMaskedTail) {
  HostKernel kernel(row_sum());
  constexpr int kRows = 3, kColumns = 37;
  std::vector<float> x(kRows * kColumns), y(kRows, -1);
  std::iota(x.begin(), x.end(), 0.0f);
  kernel({x.data(), y.data()}, {kColumns}, kRows);
  for (int row = 0; row < kRows; ++row) {
    float expected = std::accumulate(x.begin() + row * kColumns, x.begin() + (row + 1) * kColumns,
                                     0.0f);
    EXPECT_EQ(y[row], expected);
  }
}

TEST(CompileTest, PointwiseLeavesElementsPastTheExtentAlone) {
  Builder b("scale");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), b.index(16)), left = b.sub(n, at);
  ValueId value = b.load({x, at, {}, {left}}, {16});
  b.store({y, at, {}, {left}}, b.mul(value, b.constant(DType::kF32, 2)));
  HostKernel kernel(b.finish());
  std::vector<float> in(64, 3), out(64, -1);
  kernel({in.data(), out.data()}, {35}, 3);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 35 ? 6 : -1) << i;
}

}  // namespace
}  // namespace tenon::codegen
