// Dequantising every code and quantising around every boundary, against base/convert.h.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/convert.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

struct Case {
  DType dtype;
  Fn dequantize, quantize;
};

class SmallFloatTest : public testing::TestWithParam<Case> {};

TEST_P(SmallFloatTest, DequantizesEveryCode) {
  const Case& c = GetParam();
  int codes = c.dtype == DType::kF4E2M1 ? 16 : 256;
  std::vector<uint8_t> x;
  for (int code = 0; code < codes; ++code) x.push_back(static_cast<uint8_t>(code));
  for (const HostTarget& target : runnable_targets()) {
    HostKernel kernel(map_kernel({DType::kU8}, DType::kF32,
                                 [&](Builder& b, std::vector<ValueId> in) {
                                   return b.unary(c.dequantize, in[0]);
                                 }),
                      target);
    std::vector<float> y(x.size());
    run_map(kernel, {x.data()}, y);
    for (size_t i = 0; i < x.size(); ++i) {
      auto expected = static_cast<float>(decode(c.dtype, x[i]));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected)) << i;
      }
    }
  }
}

std::vector<float> boundaries(DType dtype) {
  std::vector<float> x{0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e30f, -1e30f, 0x1p-149f};
  int codes = dtype == DType::kF4E2M1 ? 8 : 128;
  if (dtype == DType::kF8E8M0) codes = 255;
  auto around = [&](double value) {
    auto middle = static_cast<float>(value);
    for (float v : {middle, std::nextafterf(middle, 0), std::nextafterf(middle, INFINITY)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  };
  for (int code = 0; code < codes; ++code) {
    double here = decode(dtype, static_cast<uint64_t>(code));
    if (!std::isfinite(here)) continue;
    around(here);
    around(here * 1.5);
    double next = decode(dtype, static_cast<uint64_t>(code) + 1);
    around(std::isfinite(next) ? (here + next) / 2 : here * (1 + 1 / 16.0));
  }
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 100003) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return x;
}

TEST_P(SmallFloatTest, EncodesLikeTheReference) {
  const Case& c = GetParam();
  std::vector<float> x = boundaries(c.dtype);
  bool directed = c.dtype == DType::kF8E8M0;
  for (RoundMode round : {RoundMode::kNearestEven, RoundMode::kUp, RoundMode::kDown}) {
    if (!directed && round != RoundMode::kNearestEven) continue;
    for (bool saturate : {true, false}) {
      EncodeRule rule{saturate, round};
      HostKernel kernel(
          map_kernel({DType::kF32}, DType::kU8, [&](Builder& b, std::vector<ValueId> in) {
            return b.quantize(c.quantize, in[0], rule);
          }));
      std::vector<uint8_t> y(x.size());
      run_map(kernel, {x.data()}, y);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(int{y[i]}, static_cast<int>(encode(c.dtype, x[i], rule)))
            << x[i] << " saturate " << saturate;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, SmallFloatTest,
    testing::Values(Case{DType::kF8E4M3FN, Fn::kDequantizeF8E4M3FN, Fn::kQuantizeF8E4M3FN},
                    Case{DType::kF8E4M3FNUZ, Fn::kDequantizeF8E4M3FNUZ, Fn::kQuantizeF8E4M3FNUZ},
                    Case{DType::kF8E5M2, Fn::kDequantizeF8E5M2, Fn::kQuantizeF8E5M2},
                    Case{DType::kF8E5M2FNUZ, Fn::kDequantizeF8E5M2FNUZ, Fn::kQuantizeF8E5M2FNUZ},
                    Case{DType::kF8E8M0, Fn::kDequantizeF8E8M0, Fn::kQuantizeF8E8M0},
                    Case{DType::kF4E2M1, Fn::kDequantizeF4E2M1, Fn::kQuantizeF4E2M1}),
    [](const testing::TestParamInfo<Case>& info) { return std::string(name(info.param.dtype)); });

}  // namespace
}  // namespace tenon::codegen
