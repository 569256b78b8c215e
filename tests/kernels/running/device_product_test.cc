// A product of rows with a block-scaled weight on a device: its memory, packing and launch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/build_program.h"
#include "tests/kernels/running/device_program.h"

namespace tenon::kernels {
namespace {

using device::Buffer;
using DeviceProductTest = DeviceExecutableTest;

// A product of f16 rows with an NVFP4 weight, as the partitioner leaves it. Its bytes are zero.
ir::Graph product(int64_t n, int64_t k, std::string_view rows = "input %x: f16[rows,{1}]") {
  const std::string text = fmt::format(
      R"(graph product {{
  {6}
  const %w: f4e2m1[{0},{1}] = sha256:{3} bytes:{4}
  const %scales: f8e4m3fn[{0},{2}] = sha256:{3} bytes:{5}
  const %scale: f32[1] = hex:0000803f
  %y: f16[rows,{0}] = tenon::ScaledDot(%x, %w, _, _, %scales, _, %scale, _) {{b_k_last=1, block_b=16, result="f16"}}
  output %y
}})",
      n, k, k / 16, std::string(64, '0'), n * k / 2, n * k / 16,
      fmt::format(fmt::runtime(rows), n, k));
  return ir::parse(text);
}

TEST_F(DeviceProductTest, AProductsWeightTakesNoMoreThanItsFile) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 4096}, {4096, 1024}}) {
    const size_t before = device_->memory().free;
    const auto executable = build_on_device(product(n, k), pipelined(), device_, {});
    const size_t taken = before - device_->memory().free;
    EXPECT_GE(taken, static_cast<size_t>(n * k / 2));
    EXPECT_LE(static_cast<double>(taken), 1.05 * static_cast<double>(executable->weight_bytes()));
  }
}

TEST_F(DeviceProductTest, AProductsWeightIsPackedOnTheDeviceUnlessTheHostIsTo) {
  const auto launches = [&](bool pack_on_host) {
    const auto count = [&] {
      return stub_.calls("cuLaunchKernel") + stub_.calls("cuLaunchKernelEx");
    };
    const long before = count();
    build_on_device(product(256, 512), pipelined(), device_, {.pack_on_host = pack_on_host});
    return count() - before;
  };
  EXPECT_EQ(launches(false), 1);
  EXPECT_EQ(launches(true), 0);
}

TEST_F(DeviceProductTest, AProductIsLaunchedByPdlAndWithItsTmaDescriptors) {
  constexpr int64_t kN = 256, kK = 512, kRows = 9;
  const auto executable =
      build_on_device(product(kN, kK), pipelined(), device_, {.inputs_ready = true});
  const Buffer x(device_, kRows * kK * 2, "x"), y(device_, kRows * kN * 2, "y");
  device::Stream stream(device_);
  stream.fill(x.address(), 0, x.bytes());
  stream.synchronize();
  long encoded = 0;
  for (int i = 0; i < 3; ++i) {
    stream.fill(y.address(), 0xff, y.bytes());
    stream.synchronize();
    OneInput context(x.address(), y.address(), kRows, kK);
    executable->run(context);
    if (i == 0) encoded = stub_.calls("cuTensorMapEncodeTiled");
    const auto* bytes = reinterpret_cast<const std::byte*>(y.address());
    EXPECT_EQ(std::count(bytes, bytes + y.bytes(), std::byte{0}), y.bytes());
  }
  EXPECT_GT(encoded, 0);
  EXPECT_EQ(stub_.calls("cuTensorMapEncodeTiled"), encoded);
  EXPECT_GT(stub_.calls("cuLaunchKernelEx"), 0);
}

// Kernels count on what a launch that launches no dependents has written: it is waited for.
TEST_F(DeviceProductTest, AProductBehindAPatientLaunchWaitsForItsEnd) {
  constexpr int64_t kN = 256, kK = 512, kRows = 9;
  const ir::Graph graph = product(kN, kK, R"(input %half: f16[rows,256]
  %x: f16[rows,{1}] = Concat(%half, %half) {{axis=1}})");
  Settings settings = pipelined();
  settings.tuning.candidate.clear();
  const auto executable = build_on_device(graph, settings, device_, {.inputs_ready = true});
  const Buffer half(device_, kRows * kK, "half"), y(device_, kRows * kN * 2, "y");
  device::Stream stream(device_);
  stream.fill(half.address(), 0, half.bytes());
  stream.synchronize();
  OneInput context(half.address(), y.address(), kRows, kK / 2);
  executable->run(context);
  EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), 0);
  EXPECT_GE(stub_.calls("cuLaunchKernel"), 2);
}

}  // namespace
}  // namespace tenon::kernels
