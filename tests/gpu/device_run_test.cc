// How a partition behaves on a device: graphs, concurrent Runs, memory. Runs on a GPU, and on the
// stub driver where TENON_DRIVER_LIBRARY names it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "kernels/running/device_executable.h"
#include "kernels/saved_program.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

// Two kernels with an intermediate result between them.
constexpr std::string_view kChain = R"(graph chain {
  input %x: f32[n,64]
  %d: f32[n,64] = tenon::Loop(%x) body {
    input %a: f32[n,64]
    %m: f32[n,1] = ReduceMax(%a) {axes=[1]}
    %s: f32[n,64] = Sub(%a, %m)
    output %s
  }
  %y: f32[n,64] = tenon::Loop(%d) body {
    input %b: f32[n,64]
    %e: f32[n,64] = Exp(%b)
    output %e
  }
  output %y
})";

class DeviceRun : public testing::Test {
 protected:
  void SetUp() override {
    // Elsewhere the tests' buffers lie in memory that a GPU cannot reach.
    const char* target = std::getenv("TENON_TEST_TARGET");
    if (target == nullptr || std::string_view(target) != "gpu") {
      GTEST_SKIP() << "these tests run on a GPU, not on " << (target ? target : "the host");
    }
    if (device::Device::list().empty()) GTEST_SKIP() << "the driver offers no GPU";
    device_ = device::Device::open(0);
    settings_.host = codegen::detect_host();
    settings_.gpu = device_->description().target();
  }

  std::unique_ptr<Executable> build(const ir::Graph& graph, const DeviceRunOptions& options) {
    return build_on_device(graph, settings_, device_, options);
  }

  static HostTensor rows(int64_t count, double seed) {
    return HostTensor::from(DType::kF32, {count, 64}, [=](int64_t i) {
      return std::sin(seed + static_cast<double>(i) * 0.37);
    });
  }

  static std::vector<double> expected(const HostTensor& x) {
    std::vector<double> numbers = x.numbers();
    for (size_t row = 0; row < numbers.size(); row += 64) {
      const double top = *std::max_element(numbers.begin() + row, numbers.begin() + row + 64);
      for (size_t i = row; i < row + 64; ++i) numbers[i] = std::exp(numbers[i] - top);
    }
    return numbers;
  }

  std::shared_ptr<device::Device> device_;
  Settings settings_;
};

TEST_F(DeviceRun, GraphsServeReboundBuffersAndOtherShapes) {
  const ir::Graph graph = ir::parse(kChain);
  const auto executable = build(graph, {.graphs = true});
  for (const int64_t count : {5, 5, 5, 9, 5, 9, 9, 1, 5}) {
    const HostTensor x = rows(count, static_cast<double>(count));
    TestContext context(graph, {x});
    executable->run(context);
    expect_near(context.take_outputs()[0].numbers(), expected(x), 1e-6);
  }
}

TEST_F(DeviceRun, ConcurrentRunsDoNotDisturbEachOther) {
  const ir::Graph graph = ir::parse(kChain);
  const auto executable = build(graph, {.graphs = true});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const HostTensor x = rows(1 + (t + i) % 4, t + i * 0.1);
        TestContext context(graph, {x});
        executable->run(context);
        const std::vector<double> got = context.take_outputs()[0].numbers(), want = expected(x);
        for (size_t e = 0; e < want.size(); ++e) wrong += std::abs(got[e] - want[e]) > 1e-5;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A context file's way: nothing is lowered, packed or, with nvJitLink at hand before, assembled.
// Where weights are outside of it they are packed anew.
TEST_F(DeviceRun, ASavedProgramGivesTheSameBits) {
  std::string weight;
  for (int i = 0; i < 64 * 64 * 2; ++i) weight += "0123"[i * 7 % 4];  // f16: small, never NaN
  const ir::Graph graph =
      fuse(ir::parse("graph g {\n  input %x: f16[n,64]\n  const %w: "
                     "f16[64,64] = hex:" +
                     weight + weight + "\n  %y: f16[n,64] = MatMul@13(%x, %w)\n  output %y\n}"));
  settings_.keep_texts = true;
  Program program = make_program(graph, settings_);
  const auto writer = ContextWriter::to_memory();
  save_program(program, "p", settings_, *writer);
  save_program(program, "q", settings_, *writer, {.weights = SavedWeights::kOutside});
  writer->finish();
  const auto file = ContextFile::from_bytes(writer->take());
  OpenedProgram opened = open_program(file, "p", settings_);
  OpenedProgram packed = open_program(file, "q", settings_);
  std::vector<std::vector<std::byte>> results;
  for (Program* each : {&program, &opened.program, &packed.program}) {
    const auto executable = run_on_device(std::move(*each), *settings_.gpu, device_, {});
    const HostTensor x = HostTensor::from(
        DType::kF16, {5, 64}, [](int64_t i) { return std::sin(static_cast<double>(i)); });
    TestContext context(graph, {x});
    executable->run(context);
    results.push_back(context.take_outputs()[0].bytes);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_F(DeviceRun, MemoryGoesBack) {
  const ir::Graph graph = ir::parse(kChain);
  const auto cycle = [&] {
    const auto executable = build(graph, {.graphs = true});
    for (int i = 0; i < 3; ++i) {
      TestContext context(graph, {rows(64, i)});
      executable->run(context);
    }
  };
  for (int i = 0; i < 3; ++i) cycle();
  const size_t before = device_->memory().free;
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_GE(device_->memory().free + (size_t{4} << 20), before);
}

TEST_F(DeviceRun, ALimitOnMemoryIsAnErrorThatLeavesTheSessionUsable) {
  const ir::Graph graph = ir::parse(kChain);
  const auto executable = build(graph, {.memory_limit = 64 << 10});
  TestContext large(graph, {rows(4096, 1)}), small(graph, {rows(2, 1)});
  EXPECT_THROW(executable->run(large), device::OutOfMemory);
  EXPECT_NO_THROW(executable->run(small));
}

TEST_F(DeviceRun, AnAbsentGpuIsCompiledForAndSaysSoAtRun) {
  const ir::Graph graph = ir::parse(kChain);
  settings_.gpu = codegen::GpuTarget{};
  const auto executable = build_on_device(graph, settings_, nullptr, {});
  TestContext context(graph, {rows(2, 1)});
  EXPECT_THROW(executable->run(context), UserError);
}

}  // namespace
}  // namespace tenon::kernels
