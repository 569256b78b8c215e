// A program on the stub driver that a test writes launch by launch, and what a Run brings to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "codegen/tile/text.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/device/stream.h"
#include "kernels/running/device_executable.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"
#include "tests/kernels/device/stub_driver.h"
#include "tests/kernels/running/allocation_count.h"

namespace tenon::kernels {

inline constexpr int64_t kColumns = test::kBoxColumns;

// One input [n, 32] and one output.
class OneInput final : public RunContext {
 public:
  OneInput(device::Address x, device::Address y, int64_t rows, int64_t columns = kColumns)
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
  device::Address x_, y_;
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

  std::vector<device::Address> inputs, outputs;
  std::vector<std::vector<int64_t>> dims;

 private:
  void* stream_;
};

class DeviceExecutableTest : public ::testing::Test {
 protected:
  DeviceExecutableTest() {
    program_.inputs = {{"x", graph_.value(graph_.inputs()[0]).shape}};
    const ir::Value& output = graph_.value(graph_.outputs()[0]);
    program_.outputs = {{*output.shape, output.dtype}};
    program_.slots = {{Slot::Kind::kInput, 0, {}, bytes_, 0, 0, "x"},
                      {Slot::Kind::kOutput, 0, {}, bytes_, 0, 0, "y"}};
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
    program_.dependencies.add(kernel, launch.node, launch.slots,
                              codegen::has_pdl(device_->description().target()));
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
      program_.slots.push_back({Slot::Kind::kInput, i, {}, bytes_, 0, 0});
      program_.slots.push_back({Slot::Kind::kOutput, i, {}, bytes_, 0, 0});
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

  device::Buffer rows_of(float value, int64_t rows = kMostRows) {
    device::Buffer buffer(device_, static_cast<size_t>(rows * kColumns) * sizeof(float), "rows");
    std::fill_n(reinterpret_cast<float*>(buffer.address()), rows * kColumns, value);
    return buffer;
  }

  // Of each of three Runs: launches that wait for all before them, and launches by PDL.
  void expect_launches(int waiting, int by_pdl) {
    const auto executable = finish();
    const device::Buffer x = rows_of(3.0f), y = rows_of(0.0f);
    for (int run = 1; run <= 3; ++run) {
      OneInput context(x.address(), y.address(), 10);
      executable->run(context);
      EXPECT_EQ(stub_.calls("cuLaunchKernel"), waiting * run);
      EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), by_pdl * run);
    }
  }

  static std::span<const float> read(const device::Buffer& buffer, int64_t rows) {
    return {reinterpret_cast<const float*>(buffer.address()), static_cast<size_t>(rows * kColumns)};
  }

  static constexpr int64_t kMostRows = 16;
  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  ir::Graph graph_ = ir::parse(R"(graph g {
  input %x: f32[n,32]
  %y: f32[n,32] = Identity(%x)
  output %y
})");
  Program program_{graph_};
  Dim n_ = Dim::symbol("n");
  Dim bytes_ = n_ * Dim(kColumns * int64_t{sizeof(float)});  // of the input and of the output
};

}  // namespace tenon::kernels
