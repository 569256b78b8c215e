// Block-scaled dots of Blackwell: the graph that cuDNN gets, where scales lie, and which versions
// and types are asked.
#include "kernels/cudnn/block_scaled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/convert.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/plan.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/device.h"
#include "tests/kernels/cudnn/stub_library.h"

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;

BlockScaledDot nvfp4() {
  BlockScaledDot dot;
  dot.a_type = dot.b_type = DType::kF4E2M1;
  dot.scale_type = DType::kF8E4M3FN;
  dot.block = 16;
  dot.result = DType::kBF16;
  return dot;
}

BlockScaledDot mxfp8(DType a = DType::kF8E4M3FN, DType b = DType::kF8E4M3FN) {
  BlockScaledDot dot;
  dot.a_type = a;
  dot.b_type = b;
  dot.scale_type = DType::kF8E8M0;
  dot.block = 32;
  dot.result = DType::kF32;
  return dot;
}

TEST(CudnnBlockScaledTest, ADotOfMxfp8) {
  EXPECT_EQ(mxfp8().graph({.batch = 1, .m = 256, .n = 384, .k = 128}).text(),
            "t0: f8e4m3fn[1, 256, 128]\n"
            "t1: f8e8m0[1, 256, 4] in tiles of 128x4\n"
            "t2: f8e4m3fn[1, 128, 384] strides [49152, 1, 128]\n"
            "t3: f8e8m0[1, 4, 384] strides [1536, 1, 4] in tiles of 128x4\n"
            "t4: f32[1, 256, 384]\n"
            "t5: f32[1, 256, 128] virtual\n"
            "t6: f32[1, 128, 384] virtual strides [49152, 1, 128]\n"
            "t5 = dequantize(t0, t1) block [1, 32]\n"
            "t6 = dequantize(t2, t3) block [32, 1]\n"
            "t4 = matmul(t5, t6)\n");
}

// Only scales are filled up: rows to 128, blocks of k to 4.
TEST(CudnnBlockScaledTest, ADotOfNvfp4WithAFactorAndCodesAsResult) {
  BlockScaledDot dot = nvfp4();
  dot.has_factor = true;
  dot.result = DType::kF4E2M1;
  dot.result_scale_type = DType::kF8E4M3FN;
  EXPECT_EQ(dot.graph({.batch = 3, .m = 137, .n = 272, .k = 160}).text(),
            "t0: f4e2m1[3, 137, 160]\n"
            "t1: f8e4m3fn[3, 256, 12] in tiles of 128x4\n"
            "t2: f4e2m1[3, 160, 272] strides [43520, 1, 160]\n"
            "t3: f8e4m3fn[3, 12, 384] strides [4608, 1, 12] in tiles of 128x4\n"
            "t4: f32[1, 1, 1]\n"
            "t5: f4e2m1[3, 137, 272]\n"
            "t6: f8e4m3fn[3, 256, 20] in tiles of 128x4\n"
            "t7: f32[3, 137, 160] virtual\n"
            "t8: f32[3, 160, 272] virtual strides [43520, 1, 160]\n"
            "t9: f32[3, 137, 272] virtual\n"
            "t10: f32[3, 137, 272] virtual\n"
            "t7 = dequantize(t0, t1) block [1, 16]\n"
            "t8 = dequantize(t2, t3) block [16, 1]\n"
            "t9 = matmul(t7, t8)\n"
            "t10 = multiply(t9, t4)\n"
            "t5, t6 = quantize(t10) block 16\n");
}

// Tiles of 512 bytes: 32 rows of 16, each with 4 blocks of rows r, r + 32, r + 64 and r + 96.
TEST(CudnnBlockScaledTest, ScalesLieInTiles) {
  const ScaleTiles tiles{512, 64};
  for (int64_t row = 0; row < tiles.rows; ++row) {
    for (int64_t block = 0; block < tiles.blocks; ++block) {
      const int64_t offset = tiles.offset(row, block);
      const int64_t tile = offset / 512, inside = offset % 512;
      EXPECT_EQ(tile / 16 * 128 + inside % 16 / 4 * 32 + inside / 16, row);
      EXPECT_EQ(tile % 16 * 4 + inside % 4, block);
    }
  }
}

TEST(CudnnBlockScaledTest, ScalesAreFilledUpWithZeros) {
  const ScaleTiles tiles{130, 5};
  EXPECT_EQ(tiles.bytes(), 256 * 8);
  std::vector<std::byte> scales(130 * 5, std::byte{7});
  const std::vector<std::byte> packed = tiles.from_rows(scales);
  EXPECT_EQ(std::ranges::count(packed, std::byte{7}), 130 * 5);
  EXPECT_EQ(std::ranges::count(packed, std::byte{0}), 256 * 8 - 130 * 5);
  EXPECT_EQ(packed.at(tiles.offset(129, 4)), std::byte{7});
  scales.pop_back();
  EXPECT_ANY_THROW(tiles.from_rows(scales));
}

TEST(CudnnBlockScaledTest, VersionsAndTypesThatAreAsked) {
  EXPECT_FALSE(takes(nvfp4(), 90700, 10));  // several GPUs fail
  EXPECT_TRUE(takes(nvfp4(), 91000, 10));
  EXPECT_TRUE(takes(nvfp4(), 91000, 12));
  EXPECT_THAT(takes(nvfp4(), 91900, 9).reason, HasSubstr("sm_100"));
  BlockScaledDot scaled = nvfp4();
  scaled.has_factor = true;
  EXPECT_THAT(takes(scaled, 91200, 10).reason, HasSubstr("9.12.0 leaves out a factor"));
  EXPECT_TRUE(takes(scaled, 91300, 10));
  BlockScaledDot codes = nvfp4();
  codes.result_scale_type = DType::kF8E4M3FN;
  EXPECT_FALSE(takes(codes, 91300, 10));
  EXPECT_TRUE(takes(codes, 91400, 10));
  EXPECT_FALSE(takes(codes, 91400, 12));

  EXPECT_TRUE(takes(mxfp8(DType::kF8E4M3FN, DType::kF8E5M2), 91000, 10));
  EXPECT_TRUE(takes(mxfp8(DType::kF8E5M2, DType::kF8E4M3FN), 91000, 10));
  EXPECT_THAT(takes(mxfp8(DType::kF8E5M2, DType::kF8E5M2), 91900, 10).reason,
              HasSubstr("unless both are f8e5m2"));
  EXPECT_FALSE(takes(mxfp8(DType::kF4E2M1, DType::kF8E4M3FN), 91900, 10));
  BlockScaledDot mxfp4 = mxfp8(DType::kF4E2M1, DType::kF4E2M1);
  EXPECT_FALSE(takes(mxfp4, 91800, 10));
  EXPECT_TRUE(takes(mxfp4, 91900, 10));
  mxfp4.block = 16;
  EXPECT_FALSE(takes(mxfp4, 91900, 10));
}

std::vector<std::byte> random_codes(int64_t bytes, unsigned most, std::mt19937& random) {
  std::vector<std::byte> codes(static_cast<size_t>(bytes));
  for (std::byte& code : codes) code = static_cast<std::byte>(random() % (most + 1));
  return codes;
}

// Packed scales and the graph mean the same thing.
TEST(CudnnBlockScaledTest, TheStubMultipliesWhatTheTilesScale) {
  const StubLibrary stub = stub_library();
  BlockScaledDot dot = nvfp4();
  dot.result = DType::kF32;
  dot.has_factor = true;
  constexpr int64_t kM = 130, kN = 12, kK = 96, kBlocks = 6;
  std::mt19937 random(3);
  // No code above 0x7e is a NaN of e4m3.
  auto a = random_codes(kM * kK / 2, 255, random), b = random_codes(kN * kK / 2, 255, random);
  const auto a_scales = random_codes(kM * kBlocks, 0x50, random);
  const auto b_scales = random_codes(kN * kBlocks, 0x50, random);
  auto a_tiles = ScaleTiles{kM, kBlocks}.from_rows(a_scales);
  auto b_tiles = ScaleTiles{kN, kBlocks}.from_rows(b_scales);
  alignas(16) float factor[4] = {0.25f};
  std::vector<float> y(kM * kN);
  alignas(16) std::byte workspace[64];
  const GraphCall call(&stub.functions, 0, WeightDot{dot, kN, kK}, {});
  call.enqueue(nullptr,
               std::vector<void*>{a.data(), a_tiles.data(), b.data(), b_tiles.data(), factor,
                                  y.data(), workspace},
               std::vector<int64_t>{kM, 64});
  const auto real = [](const std::vector<std::byte>& codes, const std::vector<std::byte>& scales,
                       int64_t row, int64_t k) {
    return load_element(DType::kF4E2M1, codes.data(), row * kK + k) *
           load_element(DType::kF8E4M3FN, scales.data(), row * kBlocks + k / 16);
  };
  for (int64_t i = 0; i < kM * kN; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < kK; ++k)
      sum += real(a, a_scales, i / kN, k) * real(b, b_scales, i % kN, k);
    ASSERT_EQ(y[i], static_cast<float>(sum * 0.25)) << i;
  }
}

// cuDNN's own check, from a description of the GPU.
TEST(CudnnBlockScaledTest, ADescribedGpuIsEnough) {
  const LibraryAnswer& library = cudnn::library();
  if (!library.support) GTEST_SKIP() << library.support.reason;
  const int version = library.functions.version;
  for (const auto& [arch, major] :
       {std::pair{"sm_100a", 10}, std::pair{"sm_103a", 10}, std::pair{"sm_120a", 12}}) {
    if (!plans_without_device(version, major)) continue;
    const codegen::GpuTarget target = device::named_description(arch).target();
    BlockScaledDot scaled = nvfp4();
    scaled.has_factor = true;
    for (const BlockScaledDot& dot :
         {nvfp4(), scaled, mxfp8(), mxfp8(DType::kF8E4M3FN, DType::kF8E5M2)}) {
      const Graph graph = dot.graph({.batch = 1, .m = 250, .n = 256, .k = 224});
      const PlanAnswer answer =
          make_plan(library.functions, {.described = &target}, graph, {.builds = false});
      const std::string& why = answer.support.reason;
      if (why.find("libcuda.so.1") != std::string::npos) GTEST_SKIP() << why;
      EXPECT_TRUE(answer.support) << arch << "\n" << graph.text() << answer.support.reason;
    }
  }
}

}  // namespace
}  // namespace tenon::cudnn
