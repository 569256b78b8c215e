// Runs a graph given as text through an Executable: inputs as plain numbers, outputs likewise.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "base/convert.h"
#include "base/dtype.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/running/executable.h"
#include "tests/kernels/test_target.h"

namespace tenon::kernels {

struct HostTensor {
  DType dtype{};
  std::vector<int64_t> dims;
  std::vector<std::byte> bytes;

  int64_t elements() const {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return count;
  }
  std::vector<double> numbers() const {
    std::vector<double> result;
    for (int64_t i = 0; i < elements(); ++i) result.push_back(load_element(dtype, bytes.data(), i));
    return result;
  }
  static HostTensor of(DType dtype, std::vector<int64_t> dims, const std::vector<double>& values) {
    HostTensor tensor{dtype, std::move(dims), {}};
    tensor.bytes.resize(storage_bytes(dtype, tensor.elements()));
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      store_element(dtype, tensor.bytes.data(), i, values[i % values.size()]);
    }
    return tensor;
  }
  static HostTensor from(DType dtype, std::vector<int64_t> dims,
                         const std::function<double(int64_t)>& value) {
    HostTensor tensor{dtype, std::move(dims), {}};
    tensor.bytes.resize(storage_bytes(dtype, tensor.elements()));
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      store_element(dtype, tensor.bytes.data(), i, value(i));
    }
    return tensor;
  }
};

// Outputs have guard bytes behind them and are poisoned before the run.
class TestContext final : public RunContext {
 public:
  TestContext(const ir::Graph& graph, std::vector<HostTensor> inputs) : inputs_(std::move(inputs)) {
    for (const HostTensor& input : inputs_) places_.push_back(TestMemory::holding(input.bytes));
    for (ir::ValueId id : graph.outputs()) outputs_.push_back({graph.value(id).dtype, {}, {}});
    rooms_.resize(outputs_.size());
  }

  Input input(size_t index) override { return {places_[index]->data(), inputs_[index].dims}; }

  void* output(size_t index, std::span<const int64_t> dims) override {
    HostTensor& output = outputs_[index];
    output.dims.assign(dims.begin(), dims.end());
    rooms_[index] = TestMemory::poisoned(storage_bytes(output.dtype, output.elements()));
    return rooms_[index]->data();
  }

  // On two threads of its own, as a runtime may.
  void parallel_for(int64_t total, int64_t,
                    const std::function<void(int64_t, int64_t)>& fn) override {
    ++parallel_calls;
    std::jthread other([&] { fn(total / 2, total); });
    fn(0, total / 2);
  }

  std::vector<HostTensor> take_outputs() {
    for (size_t index = 0; index < outputs_.size(); ++index) {
      if (rooms_[index] == nullptr) continue;
      std::vector<std::byte> bytes = rooms_[index]->read();
      const size_t size = bytes.size() - TestMemory::kGuard;
      for (size_t i = size; i < bytes.size(); ++i) {
        EXPECT_EQ(bytes[i], TestMemory::kPoison) << "a kernel wrote past its output";
      }
      bytes.resize(size);
      outputs_[index].bytes = std::move(bytes);
    }
    return std::move(outputs_);
  }

  int parallel_calls = 0;

 private:
  std::vector<HostTensor> inputs_, outputs_;
  std::vector<std::unique_ptr<TestMemory>> places_, rooms_;  // of inputs and outputs
};

struct TestGraph {
  ir::Graph graph;
  std::unique_ptr<Executable> executable;

  explicit TestGraph(std::string_view text)
      : graph(ir::parse(text)), executable(build_for_test(graph, test_settings())) {}

  std::vector<HostTensor> run(std::vector<HostTensor> inputs) const {
    TestContext context(graph, std::move(inputs));
    executable->run(context);
    return context.take_outputs();
  }
};

inline std::vector<HostTensor> run_graph(std::string_view text, std::vector<HostTensor> inputs) {
  return TestGraph(text).run(std::move(inputs));
}

inline void expect_near(const std::vector<double>& got, const std::vector<double>& expected,
                        double tolerance = 0) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i;
    } else {
      ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
    }
  }
}

}  // namespace tenon::kernels
