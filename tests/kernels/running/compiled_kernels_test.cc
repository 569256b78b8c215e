#include "kernels/running/compiled_kernels.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

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
  static auto on_host(const codegen::Kernel& kernel) { return together({kernel})[0]; }
  static std::vector<Compiled<HostKernel>> together(const std::vector<codegen::Kernel>& kernels,
                                                    const codegen::StageSink& sink = {}) {
    std::vector<Digest> contents;
    for (const codegen::Kernel& kernel : kernels) contents.push_back(codegen::content_of(kernel));
    return compile_host_once(kernels, contents, codegen::detect_host(), sink);
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

TEST_F(CompiledKernelsTest, OnlyWhatIsMissingIsCompiledWithTheOthers) {
  on_host(add_to_all("one", "1.0"));
  const std::vector<codegen::Kernel> kernels{add_to_all("a", "2.0"), add_to_all("b", "1.0"),
                                             add_to_all("c", "3.0")};
  const auto compiled = together(kernels);
  ASSERT_EQ(compiled.size(), 3u);
  EXPECT_EQ(
      (std::vector<bool>{compiled[0].is_shared, compiled[1].is_shared, compiled[2].is_shared}),
      (std::vector<bool>{false, true, false}));
  EXPECT_EQ(compiled[0].code->code, compiled[2].code->code);
  EXPECT_NE(compiled[0].code->code, compiled[1].code->code);
  for (const float step : {2.0f, 1.0f, 3.0f}) {
    std::vector<float> x(64, 5.0f);
    void* buffers[] = {x.data()};
    compiled[step == 2.0f ? 0 : step == 1.0f ? 1 : 2].code->function(buffers, nullptr, 0, 1);
    EXPECT_EQ(x, std::vector<float>(64, 5.0f + step));
  }
}

TEST_F(CompiledKernelsTest, ADumpSeesEveryStageOfEachOnTheHost) {
  const std::vector<codegen::Kernel> kernels{add_to_all("a", "1.0"), add_to_all("b", "2.0")};
  together(kernels);
  std::map<std::string, int> stages;
  const auto count = [&](std::string_view kernel, std::string_view, std::string_view) {
    ++stages[std::string(kernel)];
  };
  for (const auto& compiled : together(kernels, count)) EXPECT_FALSE(compiled.is_shared);
  EXPECT_EQ(stages, (std::map<std::string, int>{{"a", 5}, {"b", 5}}));
}

}  // namespace
}  // namespace tenon::kernels
