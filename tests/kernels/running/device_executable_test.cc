// How a program's launches get their TMA descriptors, counters and weights on a device. Programs
// are written by hand, so that each holds just what is looked at.
#include "kernels/running/device_executable.h"
#include "kernels/build_program.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "codegen/tile/text.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/device/stream.h"
#include "kernels/running/shape_instance.h"
#include "tests/kernels/device/stub_driver.h"
#include "tests/kernels/running/allocation_count.h"

namespace tenon::kernels {
namespace {

using device::Address;
using device::Buffer;
using test::StubDriver;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kColumns = test::kBoxColumns;

// One input [n, 32] and one output.
class OneInput final : public RunContext {
 public:
  OneInput(Address x, Address y, int64_t rows, int64_t columns = kColumns)
      : x_(x), y_(y), dims_{rows, columns} {}
  Input input(size_t) override { return {reinterpret_cast<const void*>(x_), dims_}; }
  void* output(size_t, std::span<const int64_t>) override { return reinterpret_cast<void*>(y_); }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_; }
  OneInput& on(const device::Stream& stream) {
    stream_ = stream.handle();
    return *this;
  }

 private:
  void* stream_ = nullptr;
  Address x_, y_;
  std::vector<int64_t> dims_;
};

// Inputs [n, 32] and as many outputs, each where it is put.
class ManyBuffers final : public RunContext {
 public:
  ManyBuffers(size_t count, int64_t rows, const device::Stream& stream)
      : inputs(count), outputs(count), dims(count, {rows, kColumns}), stream_(stream.handle()) {}
  Input input(size_t index) override {
    return {reinterpret_cast<const void*>(inputs[index]), dims[index]};
  }
  void* output(size_t index, std::span<const int64_t>) override {
    return reinterpret_cast<void*>(outputs[index]);
  }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_; }

  std::vector<Address> inputs, outputs;
  std::vector<std::vector<int64_t>> dims;

 private:
  void* stream_;
};

class DeviceExecutableTest : public ::testing::Test {
 protected:
  DeviceExecutableTest() {
    program_.inputs = {{"x", graph_.value(graph_.inputs()[0]).shape}};
    program_.outputs = {*graph_.value(graph_.outputs()[0]).shape};
    program_.slots = {{Slot::Kind::kInput, 0, {}, 0, 0, 0}, {Slot::Kind::kOutput, 0, {}, 0, 0, 0}};
    program_.output_slots = {1};
  }

  void add_launch(codegen::GpuCode code, std::vector<bool> is_buffer, std::vector<size_t> slots,
                  std::vector<Dim> indices, const Dim& tasks) {
    CompiledLaunch launch;
    launch.kernel = program_.gpu_code.size();
    launch.threads = code.threads;
    launch.is_buffer = std::move(is_buffer);
    launch.slots = std::move(slots);
    launch.indices = std::move(indices);
    launch.tasks = tasks;
    launch.node = "node";
    const codegen::Kernel kernel = codegen::parse(codegen::tile_program(code.ptx));
    program_.dependencies.begin_node();
    program_.dependencies.add(kernel, launch.node, launch.slots, device_->description().target());
    program_.gpu_code.push_back(std::make_shared<codegen::GpuCode>(std::move(code)));
    program_.launches.push_back(std::move(launch));
  }

  void add_tma_copy() {
    add_launch(test::tma_copy_code(), {true, true, false}, {0, 1}, {n_},
               ceil_div(n_, Dim(test::kBoxRows)));
  }

  // Each output is a copy of its input.
  void make_many_copies(size_t count) {
    program_.inputs.assign(count, program_.inputs.at(0));
    program_.outputs.assign(count, program_.outputs.at(0));
    program_.slots.clear();
    program_.output_slots.clear();
    for (size_t i = 0; i < count; ++i) {
      program_.slots.push_back({Slot::Kind::kInput, i, {}, 0, 0, 0});
      program_.slots.push_back({Slot::Kind::kOutput, i, {}, 0, 0, 0});
      program_.output_slots.push_back(2 * i + 1);
      add_launch(test::tma_copy_code(), {true, true, false}, {2 * i, 2 * i + 1}, {n_},
                 ceil_div(n_, Dim(test::kBoxRows)));
    }
  }

  // Of a warm Run. What the stub allocates is not ours.
  long allocations_of(Executable& executable, RunContext& context) {
    auto& driver = const_cast<device::Driver&>(device_->driver());
    const device::Driver stub = driver;
    driver.graph_launch = [](device::GraphExecHandle, device::StreamHandle) { return 0; };
    driver.set_current = [](device::ContextHandle) { return 0; };
    driver.stream_capturing = [](device::StreamHandle, int*) { return 0; };
    const long allocations = test::count_allocations([&] { executable.run(context); });
    driver = stub;
    return allocations;
  }

  std::unique_ptr<Executable> finish(const DeviceRunOptions& options = {}) {
    return run_on_device(std::move(program_), device_->description().target(), device_, options);
  }

  Settings pipelined() const {
    Settings settings;
    settings.host = codegen::detect_host();
    settings.gpu = device_->description().target();
    settings.gpu->pipelines = true;
    settings.tuning.candidate = "pipelined";
    return settings;
  }

  Buffer rows_of(float value, int64_t rows = kMostRows) {
    Buffer buffer(device_, static_cast<size_t>(rows * kColumns) * sizeof(float), "rows");
    std::fill_n(reinterpret_cast<float*>(buffer.address()), rows * kColumns, value);
    return buffer;
  }

  // Of each of three Runs: launches that wait for all before them, and launches by PDL.
  void expect_launches(int waiting, int by_pdl) {
    const auto executable = finish();
    const Buffer x = rows_of(3.0f), y = rows_of(0.0f);
    for (int run = 1; run <= 3; ++run) {
      OneInput context(x.address(), y.address(), 10);
      executable->run(context);
      EXPECT_EQ(stub_.calls("cuLaunchKernel"), waiting * run);
      EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), by_pdl * run);
    }
  }

  static std::span<const float> read(const Buffer& buffer, int64_t rows) {
    return {reinterpret_cast<const float*>(buffer.address()), static_cast<size_t>(rows * kColumns)};
  }

  static constexpr int64_t kMostRows = 16;
  StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  ir::Graph graph_ = ir::parse(R"(graph g {
  input %x: f32[n,32]
  %y: f32[n,32] = Identity(%x)
  output %y
})");
  Program program_{graph_};
  Dim n_ = Dim::symbol("n");
};

// ---- TMA descriptors

TEST_F(DeviceExecutableTest, AWarmRunEncodesNoMap) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(3.0f), y = rows_of(0.0f);
  for (int i = 0; i < 3; ++i) {
    OneInput context(x.address(), y.address(), 10);
    executable->run(context);
    EXPECT_EQ(stub_.calls("cuTensorMapEncodeTiled"), 1);
  }
  EXPECT_THAT(read(y, 10), Each(3.0f));
  EXPECT_EQ(stub_.calls("cuLaunchKernel"), 3);
}

// Launches read inputs without waiting for each other: only the first waits for what came before.
TEST_F(DeviceExecutableTest, TheFirstLaunchOfARunWaitsForAllBeforeIt) {
  add_tma_copy();
  add_tma_copy();
  expect_launches(1, 1);
}

// The copy is no launch that could let one begin.
TEST_F(DeviceExecutableTest, ALaunchBehindACopyWaitsForIt) {
  for (int i = 0; i < 2; ++i) {
    add_tma_copy();
    program_.launches.back().fetched = {{0, n_ * Dim(kColumns * 4)}};
  }
  const auto executable = finish();
  const Buffer x = rows_of(3.0f), y = rows_of(0.0f);
  OneInput context(x.address() + sizeof(float), y.address(), 10);
  executable->run(context);
  EXPECT_EQ(stub_.calls("cuLaunchKernel"), 2);
  EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), 0);
  EXPECT_THAT(read(y, 10), Each(3.0f));
}

// Neither the watch of indices nor the launch that they are of is held up by the other.
TEST_F(DeviceExecutableTest, ALaunchBehindAWatchOfIndicesUsesPdl) {
  add_tma_copy();
  add_tma_copy();
  IndexCheck check;
  check.bound = std::numeric_limits<int32_t>::max();
  program_.launches[1].checks.push_back({0, DType::kI32, n_ * Dim(kColumns), check});
  expect_launches(1, 2);
}

TEST_F(DeviceExecutableTest, OtherBuffersAndSizesGetMapsOfTheirOwn) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer first = rows_of(1.0f), second = rows_of(2.0f), y = rows_of(0.0f);
  for (int i = 0; i < 3; ++i) {
    for (const int64_t rows : {10, 16}) {
      OneInput one(first.address(), y.address(), rows), two(second.address(), y.address(), rows);
      executable->run(one);
      EXPECT_THAT(read(y, rows), Each(1.0f));
      executable->run(two);
      EXPECT_THAT(read(y, rows), Each(2.0f));
    }
  }
  EXPECT_EQ(stub_.calls("cuTensorMapEncodeTiled"), 4);
}

TEST_F(DeviceExecutableTest, GraphsFollowABufferThatIsBoundAnew) {
  add_tma_copy();
  const auto executable = finish({.graphs = true});
  const Buffer y = rows_of(0.0f);
  std::vector<Buffer> inputs;
  for (int i = 0; i < 7; ++i) inputs.push_back(rows_of(static_cast<float>(i)));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 7; ++i) {
      OneInput context(inputs[i].address(), y.address(), 12);
      executable->run(context);
      EXPECT_THAT(read(y, 12), Each(static_cast<float>(i)));
    }
  }
  EXPECT_GT(stub_.calls("cuGraphExecUpdate_v2"), 0);
}

TEST_F(DeviceExecutableTest, NoRowsNeedNoMap) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
  OneInput none(x.address(), y.address(), 0), some(x.address(), y.address(), 5);
  executable->run(none);
  EXPECT_EQ(stub_.calls("cuTensorMapEncodeTiled"), 0);
  executable->run(some);
  EXPECT_THAT(read(y, 5), Each(1.0f));
}

TEST_F(DeviceExecutableTest, WhatIsFetchedIsCopiedWhereItIsNotAligned) {
  for (const bool graphs : {false, true}) {
    program_.launches.clear();
    program_.gpu_code.clear();
    program_.dependencies = {};
    add_tma_copy();
    program_.launches[0].fetched = {{0, n_ * Dim(kColumns * 4)}};
    const auto executable =
        run_on_device(program_, device_->description().target(), device_, {.graphs = graphs});
    const Buffer x = rows_of(1.0f), z = rows_of(2.0f), y = rows_of(0.0f);
    for (const int64_t rows : {3, 3, 3, 15, 15, 15, 3}) {
      OneInput off(x.address() + 4, y.address(), rows), on(z.address(), y.address(), rows);
      executable->run(off);
      EXPECT_THAT(read(y, rows), Each(1.0f));
      executable->run(on);
      EXPECT_THAT(read(y, rows), Each(2.0f));
    }
    for (const int64_t rows : {3, 15, 15, 3}) {  // other sizes where everything stays in place
      OneInput off(x.address() + 4, y.address(), rows);
      std::fill_n(reinterpret_cast<float*>(y.address()), rows * kColumns, 0.0f);
      executable->run(off);
      EXPECT_THAT(read(y, rows), Each(1.0f));
    }
  }
}

TEST_F(DeviceExecutableTest, AnInputThatTheEngineCannotReadIsNamedWithItsNode) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
  OneInput context(x.address() + 4, y.address(), 5), right(x.address(), y.address(), 5);
  try {
    executable->run(context);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("node 'node': an operand begins at"));
  }
  executable->run(right);
  EXPECT_THAT(read(y, 5), Each(1.0f));
}

// ---- buffers that the caller shares

TEST_F(DeviceExecutableTest, WhatIsThereAlreadyIsNotBroughtOver) {
  for (const bool graphs : {false, true}) {
    program_.launches.clear();
    program_.gpu_code.clear();
    program_.dependencies = {};
    add_tma_copy();
    const Dim bytes = n_ * Dim(kColumns * 4);
    program_.launches[0].elidable_copy = SharedBuffers{0, 1, bytes, bytes};
    const auto executable =
        run_on_device(program_, device_->description().target(), device_, {.graphs = graphs});
    const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
    const long before = stub_.calls("cuLaunchKernel");
    for (int i = 0; i < 3; ++i) {
      OneInput shared(x.address(), x.address(), 10);
      executable->run(shared);
    }
    EXPECT_EQ(stub_.calls("cuLaunchKernel"), before);
    OneInput apart(x.address(), y.address(), 10);
    executable->run(apart);
    EXPECT_THAT(read(y, 10), Each(1.0f));
    OneInput overlapping(x.address(), x.address() + 128, 10);
    for (int i = 0; i < 2; ++i) EXPECT_THROW(executable->run(overlapping), UserError);
    OneInput again(y.address(), x.address(), 10);
    executable->run(again);
  }
}

// ---- warm Runs and streams

TEST_F(DeviceExecutableTest, AWarmCapturedRunIsOneLaunchAndAllocatesNothing) {
  add_tma_copy();
  const auto executable = finish({.graphs = true});
  const Buffer x = rows_of(3.0f), y = rows_of(0.0f);
  const device::Stream stream(device_);
  OneInput context(x.address(), y.address(), 10);
  context.on(stream);
  for (int i = 0; i < 3; ++i) executable->run(context);

  const auto calls = [&](const char* function) {
    const long before = stub_.calls(function);
    executable->run(context);
    return stub_.calls(function) - before;
  };
  EXPECT_EQ(calls("cuGraphLaunch"), 1);
  // The other two do no work: the thread's context is set, and the stream asked for a capture.
  EXPECT_EQ(calls(""), 3);
  EXPECT_EQ(allocations_of(*executable, context), 0);
}

TEST_F(DeviceExecutableTest, AWarmRunFollowsTheOneBufferOfManyThatMoved) {
  constexpr size_t kCount = 40;
  make_many_copies(kCount);
  for (const bool graphs : {false, true}) {
    const auto executable =
        run_on_device(program_, device_->description().target(), device_, {.graphs = graphs});
    device::Stream stream(device_);
    ManyBuffers context(kCount, 10, stream);
    std::vector<Buffer> x, y;
    for (size_t i = 0; i < kCount; ++i) {
      context.inputs[i] = x.emplace_back(rows_of(static_cast<float>(i))).address();
      context.outputs[i] = y.emplace_back(rows_of(-1.0f)).address();
    }
    const auto run = [&] {
      executable->run(context);
      stream.synchronize();
    };
    for (int i = 0; i < 3; ++i) run();
    for (size_t i = 0; i < kCount; ++i) EXPECT_THAT(read(y[i], 10), Each(static_cast<float>(i)));
    if (graphs) {
      EXPECT_EQ(allocations_of(*executable, context), 0);
    }

    const Buffer elsewhere = rows_of(-1.0f);
    y[17] = rows_of(-1.0f);
    context.outputs[17] = elsewhere.address();
    for (int i = 0; i < 3; ++i) run();
    EXPECT_THAT(read(elsewhere, 10), Each(17.0f));
    EXPECT_THAT(read(y[17], 10), Each(-1.0f));
    context.inputs[5] = x[9].address();
    context.outputs[17] = y[17].address();
    run();
    EXPECT_THAT(read(y[5], 10), Each(9.0f));
    EXPECT_THAT(read(y[17], 10), Each(17.0f));
  }
}

TEST_F(DeviceExecutableTest, AWarmRunComparesTheSizesOfEveryInput) {
  constexpr size_t kCount = 3;
  make_many_copies(kCount);
  const auto executable = finish({.graphs = true});
  device::Stream stream(device_);
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
  ManyBuffers context(kCount, 10, stream);
  std::ranges::fill(context.inputs, x.address());
  std::ranges::fill(context.outputs, y.address());
  const auto right = context.dims;
  for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{
           {9, kColumns}, {10, kColumns - 1}, {10}, {10, kColumns, 1}}) {
    for (size_t input = 0; input < kCount; ++input) {
      for (int i = 0; i < 3; ++i) executable->run(context);
      context.dims[input] = wrong;
      for (int i = 0; i < 2; ++i) EXPECT_THROW(executable->run(context), UserError) << input;
      context.dims = right;
    }
  }
  for (std::vector<int64_t>& dims : context.dims) dims[0] = 15;
  executable->run(context);
  stream.synchronize();
  EXPECT_THAT(read(y, 15), Each(1.0f));
}

TEST_F(DeviceExecutableTest, ARunOnAnotherStreamWaitsForTheOneBeforeWhoseStreamIsGone) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(1.0f), z = rows_of(2.0f), y = rows_of(0.0f);
  stub_.script("lazy");
  const long ended = stub_.calls("cuStreamDestroy_v2");
  {
    const device::Stream gone(device_);
    executable->run(OneInput(x.address(), y.address(), 10).on(gone));
  }
  EXPECT_EQ(stub_.calls("cuEventRecord"), 0);
  EXPECT_EQ(stub_.calls("cuStreamDestroy_v2"), ended);
  device::Stream next(device_);
  executable->run(OneInput(z.address(), y.address(), 10).on(next));
  EXPECT_EQ(stub_.calls("cuEventRecord"), 1);
  EXPECT_EQ(stub_.calls("cuStreamWaitEvent"), 1);
  EXPECT_EQ(stub_.calls("cuStreamDestroy_v2"), ended + 1);
  next.synchronize();
  EXPECT_THAT(read(y, 10), Each(2.0f));
}

TEST_F(DeviceExecutableTest, TheEndOfARunOnAStreamOfOthersIsRecordedAtOnce) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
  device::StreamHandle foreign = nullptr;
  ASSERT_EQ(device_->driver().stream_create(&foreign, 1), 0);
  executable->run(OneInput(x.address(), y.address(), 10).on(device::Stream(device_, foreign)));
  EXPECT_EQ(stub_.calls("cuEventRecord"), 1);
  EXPECT_EQ(device_->driver().stream_destroy(foreign), 0);
}

TEST_F(DeviceExecutableTest, ARunPrefersTheStateOfItsStream) {
  add_tma_copy();
  const auto executable = finish();
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f), z = rows_of(0.0f);
  device::Stream one(device_), two(device_);
  OneInput on_two(x.address(), z.address(), 10);
  on_two.on(two);
  // While the first Run asks for its output, another on the second stream begins and ends.
  class Nested final : public RunContext {
   public:
    Nested(OneInput& outer, Executable& executable, OneInput& inner)
        : outer_(outer), executable_(executable), inner_(inner) {}
    Input input(size_t i) override { return outer_.input(i); }
    void* output(size_t i, std::span<const int64_t> dims) override {
      executable_.run(inner_);
      return outer_.output(i, dims);
    }
    void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
    void* stream() override { return outer_.stream(); }

   private:
    OneInput& outer_;
    Executable& executable_;
    OneInput& inner_;
  };
  OneInput on_one(x.address(), y.address(), 10);
  on_one.on(one);
  Nested nested(on_one, *executable, on_two);
  executable->run(nested);
  for (int i = 0; i < 3; ++i) {
    executable->run(on_two);
    executable->run(on_one);
  }
  EXPECT_EQ(stub_.calls("cuStreamWaitEvent"), 0);
  one.synchronize();
  two.synchronize();
}

// ---- counters

// The last task to arrive writes how many there are, and puts the counter back.
constexpr const char* kCount = R"(kernel @count(%c: buffer<i32>, %y: buffer<f32>, %n: index) {
  %0 = arrive %c[3] : index
  %1 = index.add %0, 1 : index
  %2 = index.equal %1, %n : bool[]
  if %2 {
    %3 = constant 0 : i32[]
    store %c[3], %3 : i32[]
    %4 = from_index %1 : f32[]
    store %y[0], %4 : f32[]
    yield
  } else {
    yield
  }
})";

TEST_F(DeviceExecutableTest, CountersAreZeroInEveryRunOfEveryState) {
  codegen::GpuCode code;
  code.entry = "count";
  code.ptx = test::ptx_around(kCount, ".param .u64 c, .param .u64 y, .param .u64 n");
  code.threads = 128;
  program_.slots.push_back({Slot::Kind::kCounters, 0, {}, n_ * Dim(4), 0, 0});
  program_.slots.push_back({Slot::Kind::kCounters, 0, {}, n_ * Dim(4), 0, 0});
  add_launch(code, {true, true, false}, {2, 1}, {n_}, n_);
  add_launch(code, {true, true, false}, {3, 1}, {n_}, n_);
  program_.launches[1].kernel = 0;
  const auto executable = finish({.graphs = true});
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f);
  for (const int64_t rows : {5, 5, 5, 40, 5, 40}) {
    OneInput context(x.address(), y.address(), rows);
    executable->run(context);
    EXPECT_EQ(read(y, 1)[0], static_cast<float>(rows));
  }
  // Once for five rows, and once for the forty that needed more room.
  EXPECT_EQ(stub_.calls("cuMemsetD8Async"), 2);
}

TEST_F(DeviceExecutableTest, CountersOfTwoLaunchesLieApartFromEachOtherAndTheArena) {
  program_.slots.push_back({Slot::Kind::kCounters, 0, {}, n_ * Dim(4), 0, 0});
  program_.slots.push_back({Slot::Kind::kCounters, 0, {}, Dim(8), 0, 0});
  program_.slots.push_back({Slot::Kind::kArena, 0, {}, Dim(640), 0, 1});
  const int64_t symbols[] = {20};
  const auto instance = instantiate(program_, symbols, 1);
  EXPECT_EQ(instance->offsets, (std::vector<int64_t>{-1, -1, 0, 128, 0}));
  EXPECT_EQ(instance->counter_bytes, 192);
  EXPECT_EQ(instance->arena_bytes, 640);
}

// ---- products

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

TEST_F(DeviceExecutableTest, AProductsWeightTakesNoMoreThanItsFile) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 4096}, {4096, 1024}}) {
    const size_t before = device_->memory().free;
    const auto executable = build_on_device(product(n, k), pipelined(), device_, {});
    const size_t taken = before - device_->memory().free;
    EXPECT_GE(taken, static_cast<size_t>(n * k / 2));
    EXPECT_LE(static_cast<double>(taken), 1.05 * static_cast<double>(executable->weight_bytes()));
  }
}

TEST_F(DeviceExecutableTest, AProductsWeightIsPackedOnTheDeviceUnlessTheHostIsTo) {
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

TEST_F(DeviceExecutableTest, AProductIsLaunchedByPdlAndWithItsTmaDescriptors) {
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
TEST_F(DeviceExecutableTest, AProductBehindAPatientLaunchWaitsForItsEnd) {
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
