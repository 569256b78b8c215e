#include "kernels/running/compiled_kernels.h"

#include <gtest/gtest.h>

#include "codegen/tile/content.h"
#include "tests/kernels/running/add_kernel.h"

namespace tenon::kernels {
namespace {

using test::add_to_all;

constexpr int kThreads = 64;

class CompiledKernelsTest : public ::testing::Test {
 protected:
  CompiledKernelsTest() { forget_compiled_kernels(); }
  ~CompiledKernelsTest() override { forget_compiled_kernels(); }

  static auto on_gpu(const codegen::Kernel& kernel, int threads = kThreads,
                     const codegen::GpuTarget& target = {}, const codegen::StageSink& sink = {}) {
    return compile_gpu_once(kernel, codegen::content_of(kernel), threads, target, sink);
  }
  static auto on_host(const codegen::Kernel& kernel) {
    return compile_host_once(kernel, codegen::content_of(kernel), codegen::detect_host());
  }
};

TEST_F(CompiledKernelsTest, OutlivesWhoHadItAndIgnoresTheName) {
  const std::string ptx = on_gpu(add_to_all("first", "1.0")).code->ptx;
  const auto again = on_gpu(add_to_all("second", "1.0"));
  EXPECT_TRUE(again.is_shared);
  EXPECT_EQ(again.code->ptx, ptx);
  EXPECT_EQ(again.code->entry, "first");
}

TEST_F(CompiledKernelsTest, WhatIsBakedInTellsKernelsApart) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  on_gpu(kernel);
  EXPECT_FALSE(on_gpu(add_to_all("k", "2.0")).is_shared);
  EXPECT_FALSE(on_gpu(kernel, 2 * kThreads).is_shared);
  for (const auto change : {+[](codegen::GpuTarget& t) { t.arch = "sm_80"; },
                            +[](codegen::GpuTarget& t) { t.shared_bytes -= 1; },
                            +[](codegen::GpuTarget& t) { t.sm_count = 7; },
                            +[](codegen::GpuTarget& t) { t.threads = 512; },
                            +[](codegen::GpuTarget& t) { t.pipelines = !t.pipelines; }}) {
    codegen::GpuTarget target;
    change(target);
    EXPECT_FALSE(on_gpu(kernel, kThreads, target).is_shared);
  }
  EXPECT_TRUE(on_gpu(kernel).is_shared);
}

TEST_F(CompiledKernelsTest, ADumpSeesEveryStageOfWhatIsKept) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  on_gpu(kernel);
  int stages = 0;
  const auto count = [&](std::string_view, std::string_view, std::string_view) { ++stages; };
  EXPECT_FALSE(on_gpu(kernel, kThreads, {}, count).is_shared);
  EXPECT_GE(stages, 5);
}

TEST_F(CompiledKernelsTest, HostCodeRunsAfterItWasForgotten) {
  const auto compiled = on_host(add_to_all("first", "1.0"));
  EXPECT_TRUE(on_host(add_to_all("second", "1.0")).is_shared);
  forget_compiled_kernels();
  EXPECT_FALSE(on_host(add_to_all("third", "1.0")).is_shared);
  std::vector<float> x(64, 2.0f);
  void* buffers[] = {x.data()};
  compiled.code->function(buffers, nullptr, 0, 1);
  EXPECT_EQ(x, std::vector<float>(64, 3.0f));
}

}  // namespace
}  // namespace tenon::kernels
