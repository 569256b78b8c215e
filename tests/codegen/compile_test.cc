// The way through: builder, compiler, call; dumps; failures.
#include "codegen/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "codegen/tile/text.h"
#include "tests/codegen/host_kernel.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace tenon::codegen {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// One row per task; the last columns are masked.
Kernel row_sum(const std::string& name = "row_sum") {
  Builder b(name);
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId n = b.index_parameter("n");
  ValueId row = b.mul(b.task(), n);
  auto sums = b.loop(b.index(0), n, b.index(16), {b.constant(DType::kF32, 0, {16})},
                     [&](ValueId i, std::span<const ValueId> in) -> std::vector<ValueId> {
                       ValueId part = b.load({x, b.add(row, i), {}, {b.sub(n, i)}}, {16});
                       return {b.add(in[0], part)};
                     });
  b.store({y, b.task()}, b.reduce(Fn::kAdd, sums[0], 0));
  return b.finish();
}

void expect_row_sums(HostFunction function) {
  constexpr int kRows = 3, kColumns = 37;
  std::vector<float> x(kRows * kColumns), y(kRows, -1);
  std::iota(x.begin(), x.end(), 0.0f);
  void* buffers[] = {x.data(), y.data()};
  int64_t indices[] = {kColumns};
  function(buffers, indices, 0, kRows);
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(y[row],
              std::accumulate(x.begin() + row * kColumns, x.begin() + (row + 1) * kColumns, 0.0f));
  }
}

// Where perf looks for the names of this process's kernels, and anybody may put something.
class PerfMap : public testing::Test {
 protected:
  PerfMap() { setenv("TENON_PERF_MAP", "1", 1); }
  ~PerfMap() override {
    unsetenv("TENON_PERF_MAP");
    fs::remove(map_);
    fs::remove(target_);
  }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void compile() const { (void)compile_host(std::vector<Kernel>{row_sum("named")}, detect_host()); }

  const fs::path map_ = "/tmp/perf-" + std::to_string(::getpid()) + ".map";
  const fs::path target_ = map_.string() + ".target";
};

TEST_F(PerfMap, NamesKernels) {
  compile();
  EXPECT_THAT(contents(map_), HasSubstr(" tenon:named\n"));
}

TEST_F(PerfMap, IsNoLinkThatLeadsElsewhere) {
  std::ofstream(target_) << "precious";
  fs::create_symlink(target_, map_);
  compile();
  EXPECT_EQ(contents(target_), "precious");
}

TEST(CompileTest, RunsSeveralKernelsOfOneCall) {
  std::vector<Kernel> kernels{row_sum("first"), row_sum("second")};
  auto code = compile_host(kernels, detect_host());
  expect_row_sums(code->function("first"));
  expect_row_sums(code->function("second"));
  EXPECT_NE(code->function("first"), code->function("second"));
  EXPECT_THROW(code->function("third"), InternalError);
}

TEST(CompileTest, RefusesTwoKernelsOfOneName) {
  std::vector<Kernel> kernels{row_sum(), row_sum()};
  EXPECT_THROW(compile_host(kernels, detect_host()), InternalError);
}

TEST(CompileTest, RefusesBrokenKernels) {
  Kernel kernel = row_sum();
  kernel.body.operations.back().operands[2] = 999;
  EXPECT_THROW(compile_host(std::span(&kernel, 1), detect_host()), InternalError);
}

TEST(CompileTest, DumpsEveryStage) {
  std::map<std::string, std::string> stages;
  Kernel kernel = row_sum();
  compile_host(std::span(&kernel, 1), detect_host(),
               [&](std::string_view name, std::string_view stage, std::string_view text) {
                 EXPECT_EQ(name, "row_sum");
                 stages.emplace(stage, text);
               });
  EXPECT_EQ(stages.size(), 5u);
  EXPECT_EQ(stages["tile"], print(kernel));
  EXPECT_THAT(stages["tile.expanded"], HasSubstr("kernel @row_sum"));
  EXPECT_THAT(stages["llvm"], HasSubstr("define void @row_sum"));
  EXPECT_THAT(stages["llvm.optimized"], HasSubstr("define void @row_sum"));
  EXPECT_THAT(stages["asm"], HasSubstr("row_sum:"));
}

TEST(CompileTest, CodeOutlivesNothingButItself) {
  HostFunction function = nullptr;
  std::shared_ptr<HostCode> kept;
  {
    Kernel kernel = row_sum();
    kept = compile_host(std::span(&kernel, 1), detect_host());
    function = kept->function("row_sum");
  }
  expect_row_sums(function);
}

// A target that claims an instruction which LLVM is told not to use.
TEST(CompileTest, SurvivesFatalErrorsOfLlvm) {
  HostTarget target = detect_host();
  if (target.arch != HostArch::kX86_64) GTEST_SKIP() << "needs an x86_64 backend";
  target.features = {"avx2", "avx512f", "f16c", "fma", "bmi,-avx512f"};
  Kernel lookup = map_kernel({DType::kU32}, DType::kF32, [](Builder& b, std::vector<ValueId> x) {
    return b.lookup(b.table(DType::kF32, std::vector<double>(16, 1.5)), x[0]);
  });
  {
#if defined(__SANITIZE_ADDRESS__)
    __lsan::ScopedDisabler leaks_are_expected;  // LLVM's frames free nothing when they are unwound
#endif
    EXPECT_THROW(compile_host(std::span(&lookup, 1), target), InternalError);
  }
  Kernel kernel = row_sum();
  expect_row_sums(compile_host(std::span(&kernel, 1), detect_host())->function("row_sum"));
}

TEST(CompileTest, ForeignTargetsAreTheUsersError) {
  bool x86 = detect_host().arch == HostArch::kX86_64;
  HostTarget foreign = host_target(x86 ? "aarch64-neon" : "x86_64-avx2");
  EXPECT_THROW(compile_to_text(row_sum(), foreign, "asm"), UserError);
  EXPECT_THROW(compile_to_text(row_sum(), detect_host(), "nonsense"), UserError);
  HostTarget old = detect_host();
  if (!x86) return;
  old.features = {"ssse3"};
  EXPECT_THROW(compile_to_text(row_sum(), old, "asm"), UserError);
}

TEST(CompileTest, ConcurrentCompilesDoNotMeet) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &failures] {
      for (int i = 0; i < 3; ++i) {
        Kernel kernel =
            map_kernel({DType::kF32}, DType::kF32, [&](Builder& b, std::vector<ValueId> x) {
              return b.add(b.unary(Fn::kTanh, x[0]), b.constant(DType::kF32, t));
            });
        HostKernel compiled(kernel);
        std::vector<float> in(20, 0.0f), out(20);
        run_map(compiled, {in.data()}, out);
        for (float value : out) failures += value != static_cast<float>(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(TargetTest, DescribesThisMachine) {
  HostTarget host = detect_host();
  EXPECT_GE(host.vector_bits, 128);
  EXPECT_GE(host.threads, 1);
  EXPECT_GE(host.l1_bytes, 8 << 10);
  EXPECT_TRUE(std::ranges::is_sorted(host.features));
  EXPECT_THAT(host.text(), HasSubstr(host.features.front()));
}

TEST(TargetTest, NamedTargets) {
  EXPECT_EQ(host_target("x86_64-avx2").lanes_f32(), 8);
  EXPECT_EQ(host_target("x86_64-avx512").lanes_f32(), 16);
  EXPECT_TRUE(host_target("x86_64-avx512vnni").has("avx512vnni"));
  EXPECT_EQ(host_target("aarch64-i8mm").vector_registers, 32);
  for (const std::string& name : host_target_names()) EXPECT_EQ(host_target(name).name, name);
  EXPECT_THROW(host_target("x86_64-neon"), UserError);
  EXPECT_THROW(host_target("sparc"), UserError);
}

TEST(TargetTest, EnvironmentCapsFeatures) {
  bool x86 = detect_host().arch == HostArch::kX86_64;
  setenv("TENON_HOST_FEATURES", x86 ? "avx2" : "neon", 1);
  HostTarget capped = detect_host();
  setenv("TENON_HOST_FEATURES", "abacus", 1);
  EXPECT_THROW(detect_host(), UserError);
  unsetenv("TENON_HOST_FEATURES");
  EXPECT_FALSE(capped.has("avx512f"));
  EXPECT_FALSE(capped.has("dotprod"));
  EXPECT_EQ(capped.vector_bits, x86 ? 256 : 128);
}

}  // namespace
}  // namespace tenon::codegen
