// Launches that are no kernels: library calls and copies, on the host and on the stub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using device::Address;
using ::testing::HasSubstr;

// y = 2 x, as a library would compute it.
class Doubling final : public LibraryCall {
 public:
  explicit Doubling(bool captures = true, bool collective = false)
      : captures_(captures), collective_(collective) {}
  std::string name() const override { return "doubling"; }
  bool is_collective() const override { return collective_; }
  bool can_be_captured() const override { return captures_; }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override {
    streams += stream != nullptr;
    if (refuses_captures && is_captured(stream)) throw UserError("doubling: not in a capture");
    if (failures < plans_that_fail) throw PlanFailed("doubling: plan failed", failures);
    ++calls;
    const auto* x = static_cast<const float*>(buffers[0]);
    auto* y = static_cast<float*>(buffers[1]);
    for (int64_t i = 0; i < numbers[0]; ++i) y[i] = 2 * x[i];
  }

  std::string replace(const PlanFailed& failed, std::span<const int64_t> numbers) const override {
    if (failures + 1 == plans) return LibraryCall::replace(failed, numbers);
    return "plan " + std::to_string(++failures);
  }

  mutable std::atomic<int> calls = 0, streams = 0;
  bool refuses_captures = false;  // which it does not know beforehand
  size_t plans = 3, plans_that_fail = 0;
  mutable size_t failures = 0;

 private:
  static bool is_captured(void* stream) {
    return device::Stream(device::Device::open(0), static_cast<device::StreamHandle>(stream))
        .capturing();
  }

  bool captures_, collective_;
};

class OneInput final : public RunContext {
 public:
  OneInput(const void* x, void* y, int64_t count, void* stream = nullptr)
      : x_(x), y_(y), dims_{count}, stream_(stream) {}
  Input input(size_t) override { return {x_, dims_}; }
  void* output(size_t, std::span<const int64_t>) override { return y_; }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_; }
  void warn(const std::string& message) override { warnings.push_back(message); }

  std::vector<std::string> warnings;

 private:
  const void* x_;
  void* y_;
  std::vector<int64_t> dims_;
  void* stream_;
};

constexpr int64_t kCount = 5;

// A library call into the arena, then a copy to the output.
class LaunchKinds : public ::testing::Test {
 protected:
  Program program(std::shared_ptr<const Doubling> call) {
    const Dim n = Dim::symbol("n");
    Program program(graph_);
    program.inputs = {{"x", Shape{n}}};
    program.outputs = {{Shape{n}, DType::kF32}};
    program.slots = {{Slot::Kind::kInput, 0, {}, 0, 0, 0, "x"},
                     {Slot::Kind::kOutput, 0, {}, 0, 0, 0, "y"},
                     {Slot::Kind::kArena, 0, {}, n * Dim(4), 0, 1, "doubled"}};
    program.output_slots = {1};
    CompiledLaunch doubling;
    doubling.kind = call->is_collective() ? LaunchKind::kCollective : LaunchKind::kLibraryCall;
    doubling.call = std::move(call);
    doubling.is_buffer = {true, true, false};
    doubling.slots = {0, 2};
    doubling.indices = {n};
    doubling.tasks = 1;
    doubling.node = "double";
    CompiledLaunch copy;
    copy.kind = LaunchKind::kCopy;
    copy.copy_bytes = n * Dim(4);
    copy.is_buffer = {true, true};
    copy.slots = {2, 1};
    copy.tasks = 1;
    copy.node = "y";
    program.dependencies.begin_node();
    program.dependencies.add_call("doubling", "double", doubling.slots, {false, true}, false);
    program.dependencies.add_call("copy", "y", copy.slots, {false, true}, false);
    program.launches = {doubling, copy};
    return program;
  }

  std::unique_ptr<Executable> on_stub(std::shared_ptr<const Doubling> call, bool graphs) {
    return run_on_device(program(std::move(call)), device_->description().target(), device_,
                         {.graphs = graphs});
  }

  const std::array<float, kCount> x_{1, 2, 3, 4, 5}, doubled_{2, 4, 6, 8, 10};
  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  ir::Graph graph_ = ir::parse(R"(graph g {
  input %x: f32[n]
  %y: f32[n] = Identity(%x)
  output %y
})");
};

TEST_F(LaunchKinds, RunOnTheHostInTheirOrder) {
  const auto call = std::make_shared<const Doubling>();
  const auto executable = run_on_host(program(call), 1);
  for (int run = 1; run <= 3; ++run) {
    std::array<float, kCount> y{};
    OneInput context(x_.data(), y.data(), kCount);
    executable->run(context);
    EXPECT_EQ(y, doubled_);
    EXPECT_EQ(call->calls, run);
  }
  EXPECT_EQ(call->streams, 0);
}

// Of a program from a file that somebody made: at the sizes of a Run, before anything runs.
TEST_F(LaunchKinds, TouchNoMoreOfABufferThanThereIs) {
  const Dim n = Dim::symbol("n");
  const auto run = [&](const std::function<void(Program&)>& change) {
    Program changed = program(std::make_shared<const Doubling>());
    changed.inputs[0].dtype = DType::kF32;
    change(changed);
    const auto executable = run_on_host(std::move(changed), 1);
    std::array<float, kCount> y{};
    OneInput context(x_.data(), y.data(), kCount);
    executable->run(context);
  };
  const auto refuses = [&](const std::string& buffer, const std::function<void(Program&)>& change) {
    try {
      run(change);
      ADD_FAILURE() << buffer;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("of '" + buffer + "', which has"));
    }
  };
  const IndexCheck elements{ir::kNoValue, 1000};
  run([](Program&) {});
  refuses("doubled", [&](Program& p) { p.slots[2].bytes = n * Dim(4) - Dim(1); });
  refuses("doubled", [&](Program& p) { p.slots[2].bytes = n - Dim(6); });
  refuses("y", [&](Program& p) { p.outputs[0].dtype = DType::kF16; });
  refuses("x", [&](Program& p) { p.launches[0].fetched = {{0, n * Dim(4) + Dim(1)}}; });
  refuses("x", [&](Program& p) {
    p.launches[0].elidable_copy = SharedBuffers{0, 2, n * Dim(8), n * Dim(4)};
  });
  refuses("x", [&](Program& p) { p.launches[0].checks = {{0, DType::kI64, n, elements}}; });
  refuses("doubled", [&](Program& p) {
    p.shape_writes = {{2, DType::kI64, std::vector<Dim>(kCount, n)}};
  });
}

TEST_F(LaunchKinds, RunOnTheStreamOfADevice) {
  for (const bool collective : {false, true}) {
    const auto call = std::make_shared<const Doubling>(true, collective);
    const auto executable = on_stub(call, /*graphs=*/false);
    std::array<float, kCount> y{};
    OneInput context(x_.data(), y.data(), kCount);
    executable->run(context);
    EXPECT_EQ(y, doubled_);
    EXPECT_EQ(call->streams, 1);
  }
}

TEST_F(LaunchKinds, ACallThatNoGraphHoldsIsMadeInEveryRun) {
  for (const bool captures : {false, true}) {
    const auto call = std::make_shared<const Doubling>(captures);
    const auto executable = on_stub(call, /*graphs=*/true);
    const long before = stub_.calls("cuGraphInstantiateWithFlags");
    std::array<float, kCount> y{};
    OneInput context(x_.data(), y.data(), kCount);
    for (int run = 0; run < 4; ++run) executable->run(context);
    // Once by itself, once into a graph.
    EXPECT_EQ(call->calls, captures ? 2 : 4);
    EXPECT_EQ(stub_.calls("cuGraphInstantiateWithFlags") - before, captures ? 1 : 0);
    EXPECT_EQ(y, doubled_);
  }
}

// cuDNN does not say which of its plans may be captured.
TEST_F(LaunchKinds, ACallThatRefusesToBeCapturedRunsWithoutAGraphAndIsToldOfOnce) {
  const auto call = std::make_shared<Doubling>();
  call->refuses_captures = true;
  const auto executable = on_stub(call, /*graphs=*/true);
  const long before = stub_.calls("cuStreamBeginCapture_v2");
  std::array<float, kCount> y{};
  OneInput context(x_.data(), y.data(), kCount);
  for (int run = 1; run <= 4; ++run) {
    y = {};
    executable->run(context);
    EXPECT_EQ(y, doubled_);
    EXPECT_EQ(call->calls, run);
  }
  EXPECT_EQ(stub_.calls("cuStreamBeginCapture_v2") - before, 1);
  ASSERT_EQ(context.warnings.size(), 1u);
  EXPECT_NE(context.warnings[0].find("doubling: not in a capture"), std::string::npos)
      << context.warnings[0];
}

TEST_F(LaunchKinds, APlanThatFailsIsReplacedAndToldOfOnce) {
  for (const bool graphs : {false, true}) {
    const auto call = std::make_shared<Doubling>();
    call->plans_that_fail = 2;
    const auto executable = on_stub(call, graphs);
    std::array<float, kCount> y{};
    OneInput context(x_.data(), y.data(), kCount);
    for (int run = 0; run < 3; ++run) {
      y = {};
      executable->run(context);
      // The stub's graphs do not call.
      if (run == 0 || !graphs) {
        EXPECT_EQ(y, doubled_);
      }
    }
    EXPECT_THAT(context.warnings,
                testing::ElementsAre("double: doubling: plan failed; plan 1 runs in its place",
                                     "double: doubling: plan failed; plan 2 runs in its place"));
  }
}

TEST_F(LaunchKinds, WhereEveryPlanFailsSoDoesTheRun) {
  const auto call = std::make_shared<Doubling>();
  call->plans_that_fail = 3;
  const auto executable = on_stub(call, /*graphs=*/false);
  std::array<float, kCount> y{};
  OneInput context(x_.data(), y.data(), kCount);
  EXPECT_THROW(executable->run(context), UserError);
  EXPECT_EQ(call->calls, 0);
  call->plans_that_fail = 0;
  executable->run(context);
  EXPECT_EQ(y, doubled_);
}

// It would be measured as another one's.
TEST_F(LaunchKinds, ATunerHearsOfAPlanThatFails) {
  const auto call = std::make_shared<Doubling>();
  call->plans_that_fail = 1;
  const auto executable = run_on_device(program(call), device_->description().target(), device_,
                                        {.replaces_failed_plans = false});
  std::array<float, kCount> y{};
  OneInput context(x_.data(), y.data(), kCount);
  EXPECT_THROW(executable->run(context), PlanFailed);
  EXPECT_EQ(call->failures, 0U);
}

TEST_F(LaunchKinds, ACaptureOfTheCallersIsRefusedByName) {
  const auto executable = on_stub(std::make_shared<const Doubling>(false), /*graphs=*/false);
  std::array<float, kCount> y{};
  device::Stream stream(device_);
  OneInput context(x_.data(), y.data(), kCount, stream.handle());
  executable->run(context);  // allocates
  stream.begin_capture();
  try {
    executable->run(context);
    FAIL() << "it was captured";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("node 'double' runs doubling"), std::string::npos)
        << error.what();
  }
  const device::Graph captured(device_, stream.end_capture());
}

TEST_F(LaunchKinds, DependenciesTellOthersApart) {
  const Program made = program(std::make_shared<const Doubling>());
  EXPECT_TRUE(made.dependencies.verify(made.slots).ok);
  const std::string text = made.dependencies.text(made.slots);
  EXPECT_NE(text.find("0 | doubling | double | after all | - | - | read x; write doubled"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("1 | copy | y | after all"), std::string::npos) << text;
}

// The second name of an output is a copy in the list of launches.
TEST_F(LaunchKinds, AnOutputUnderTwoNamesIsCopied) {
  const ir::Graph graph = ir::parse(R"(graph g {
  input %x: f32[n]
  %a: f32[n] = tenon::Loop(%x) body {
    input %u: f32[n]
    %v: f32[n] = Neg(%u)
    output %v
  }
  %y: f32[1,n] = Reshape(%a)
  output %a
  output %y
})");
  Settings settings;
  settings.host = codegen::detect_host();
  const Program made = make_program(graph, settings);
  ASSERT_EQ(made.launches.size(), 2u);
  EXPECT_EQ(made.launches[0].kind, LaunchKind::kKernel);
  EXPECT_EQ(made.launches[1].kind, LaunchKind::kCopy);
  EXPECT_EQ(made.launches[1].slots,
            (std::vector<size_t>{made.output_slots[0], made.output_slots[1]}));
}

// Where no size is open the arena and the graph are made with the executable.
TEST_F(LaunchKinds, AKnownShapeIsReadyBeforeItsFirstRun) {
  const ir::Graph fixed = ir::parse(R"(graph g {
  input %x: f32[5]
  %y: f32[5] = Identity(%x)
  output %y
})");
  const auto call = std::make_shared<const Doubling>();
  Program made(fixed);
  {
    Program open = program(call);
    made.slots = open.slots;
    made.output_slots = open.output_slots;
    made.launches = open.launches;
    made.dependencies = open.dependencies;
  }
  made.inputs = {{"x", Shape{kCount}}};
  made.outputs = {{Shape{kCount}, DType::kF32}};
  made.slots[2].bytes = kCount * 4;
  made.launches[0].indices = {kCount};
  made.launches[1].copy_bytes = kCount * 4;
  const auto executable =
      run_on_device(std::move(made), device_->description().target(), device_, {.graphs = true});
  const long instantiated = stub_.calls("cuGraphInstantiateWithFlags"),
             taken = stub_.calls("cuMemAlloc_v2");
  EXPECT_EQ(instantiated, 1);
  std::array<float, kCount> y{};
  OneInput context(x_.data(), y.data(), kCount);
  for (int run = 0; run < 3; ++run) executable->run(context);
  EXPECT_EQ(stub_.calls("cuGraphInstantiateWithFlags"), instantiated);
  EXPECT_EQ(stub_.calls("cuMemAlloc_v2"), taken);
  EXPECT_EQ(y, doubled_);
}

}  // namespace
}  // namespace tenon::kernels
