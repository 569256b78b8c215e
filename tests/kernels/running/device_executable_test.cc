// How a program's launches get their TMA descriptors, counters and weights on a device. Programs
// are written by hand, so that each holds just what is looked at.
#include "kernels/running/device_executable.h"
#include "kernels/build_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "codegen/tile/text.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/device/stream.h"
#include "kernels/running/shape_instance.h"
#include "tests/kernels/running/device_program.h"

namespace tenon::kernels {
namespace {

using device::Buffer;
using ::testing::Each;
using ::testing::HasSubstr;

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

TEST_F(DeviceExecutableTest, AnInputWhoseMemoryIsWrittenIsReadFromACopy) {
  add_tma_copy();
  const Program program = program_;
  for (const bool graphs : {false, true}) {
    const auto executable =
        run_on_device(program, device_->description().target(), device_, {.graphs = graphs});
    const Buffer x = rows_of(0.0f), y = rows_of(0.0f);
    device::Stream stream(device_);
    const auto number_rows = [&] {
      for (int64_t i = 0; i < kMostRows * kColumns; ++i) {
        reinterpret_cast<float*>(x.address())[i] = static_cast<float>(i);
      }
    };
    const auto run = [&](int64_t output) {  // first rows of input and output
      OneInput shared(x.address(), x.address() + output * kColumns * sizeof(float), 12);
      number_rows();
      executable->run(shared.on(stream));
      stream.synchronize();
      for (int64_t i = 0; i < 12 * kColumns; ++i) {
        ASSERT_EQ(read(x, kMostRows)[output * kColumns + i], static_cast<float>(i)) << output;
      }
    };
    for (int i = 0; i < 3; ++i) run(1);
    run(3);
    number_rows();
    OneInput apart(x.address(), y.address(), 12);
    executable->run(apart.on(stream));
    stream.synchronize();
    EXPECT_TRUE(std::ranges::equal(read(y, 12), read(x, 12)));
    run(1);
    OneInput warm(x.address(), x.address() + kColumns * sizeof(float), 12);
    warm.on(stream);
    if (graphs) {
      EXPECT_EQ(allocations_of(*executable, warm), 0);
    }
  }
}

TEST_F(DeviceExecutableTest, OutputsThatOverlapAreRefusedEachTime) {
  make_many_copies(2);
  const auto executable = finish({.graphs = true});
  device::Stream stream(device_);
  const Buffer x = rows_of(1.0f), y = rows_of(0.0f), z = rows_of(0.0f);
  ManyBuffers context(2, 10, stream);
  context.inputs = {x.address(), x.address()};
  for (int i = 0; i < 2; ++i) {
    context.outputs = {y.address(), y.address() + 9 * kColumns * sizeof(float)};
    for (int j = 0; j < 2; ++j) EXPECT_THROW(executable->run(context), UserError);
    context.outputs = {y.address(), z.address()};
    executable->run(context);
  }
  stream.synchronize();
  EXPECT_THAT(read(z, 10), Each(1.0f));
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
  const Buffer x = rows_of(1.0f);
  const std::array<Buffer, kCount> y = {rows_of(0.0f), rows_of(0.0f), rows_of(0.0f)};
  ManyBuffers context(kCount, 10, stream);
  std::ranges::fill(context.inputs, x.address());
  std::ranges::transform(y, context.outputs.begin(), &Buffer::address);
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
  for (const Buffer& output : y) EXPECT_THAT(read(output, 15), Each(1.0f));
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

}  // namespace
}  // namespace tenon::kernels
