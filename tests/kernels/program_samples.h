// Small graphs of every kind, run on the host and on the GPU that the stub driver is: what tests of
// saved programs share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/check_program.h"
#include "kernels/device/stream.h"
#include "kernels/program_bytes.h"
#include "kernels/selector.h"
#include "tests/kernels/device/stub_driver.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {

// Random bytes with small digits only: no type has a NaN among them.
inline std::string constant(const char* name, const std::string& type, size_t bytes,
                            unsigned seed) {
  std::mt19937 random(seed);
  std::string text = "  const %" + std::string(name) + ": " + type + " = hex:";
  for (size_t i = 0; i < 2 * bytes; ++i) text += "01234567"[random() % 8];
  return text + "\n";
}

struct Sample {
  const char* name;
  std::string graph;
  std::vector<HostTensor> inputs;
};

inline HostTensor random_tensor(DType dtype, std::vector<int64_t> dims, unsigned seed) {
  std::mt19937 random(seed);
  return HostTensor::from(dtype, std::move(dims),
                          [&](int64_t) { return static_cast<double>(random() % 2001) / 1000 - 1; });
}

// y = x * w, [b,128] times a weight [64,128] or [128,64].
inline Sample dot(const char* name, const std::string& constants, const std::string& to_w,
                  const char* type) {
  const std::string input = std::string(type) + "[b,128]", output = std::string(type) + "[b,64]";
  return {name,
          "graph g {\n  input %x: " + input + "\n" + constants + to_w + "  %y: " + output +
              " = MatMul@13(%x, %m)\n  output %y\n}\n",
          {random_tensor(*parse_dtype(type), {3, 128}, 5)}};
}

inline std::vector<Sample> samples() {
  const std::string transpose = "  %m: f32[128,64] = Transpose@13(%d) {perm=[1,0]}\n";
  const auto blocks = [&](int size) {
    return "  %d: f32[64,128] = DequantizeLinear@21(%w, %k) {axis=1, block_size=" +
           std::to_string(size) + "}\n" + transpose;
  };
  return {
      dot("f32", constant("m", "f32[128,64]", 32768, 1), "", "f32"),
      dot("f16", constant("m", "f16[128,64]", 16384, 1), "", "f16"),
      dot("int4", constant("w", "i4[64,128]", 4096, 1) + constant("k", "f32[64,4]", 1024, 2),
          blocks(32), "f32"),
      dot("int8", constant("w", "i8[64,128]", 8192, 1) + constant("k", "f32[64,4]", 1024, 2),
          blocks(32), "f32"),
      dot("fp8", constant("w", "f8e4m3fn[64,128]", 8192, 1) + constant("k", "f32[64,1]", 256, 2),
          blocks(128), "f32"),
      dot("nvfp4",
          constant("w", "f4e2m1[64,128]", 4096, 1) + constant("k8", "f8e4m3fn[64,8]", 512, 2) +
              "  const %g: f32[] = hex:0000003f\n",
          "  %k: f32[64,8] = DequantizeLinear@23(%k8, %g)\n" + blocks(16), "f32"),
      {"loop",
       "graph g {\n  input %x: f32[b,s,64]\n" + constant("c", "f32[64]", 256, 3) +
           R"(  %a: f32[b,s,64] = Add@14(%x, %c)
  %t: f32[b,s,64] = Tanh@13(%a)
  %y: f32[b,s,64] = Softmax@13(%t) {axis=-1}
  output %y
}
)",
       {random_tensor(DType::kF32, {2, 7, 64}, 6)}},
      {"attention",
       R"(graph g {
  input %q: f32[b,4,s,32]
  input %k: f32[b,4,s,32]
  input %v: f32[b,4,s,32]
  const %scale: f32[] = hex:f304353e
  %t: f32[b,4,32,s] = Transpose@13(%k) {perm=[0,1,3,2]}
  %p: f32[b,4,s,s] = MatMul@13(%q, %t)
  %z: f32[b,4,s,s] = Mul@14(%p, %scale)
  %w: f32[b,4,s,s] = Softmax@13(%z) {axis=-1}
  %y: f32[b,4,s,32] = MatMul@13(%w, %v)
  output %y
}
)",
       {random_tensor(DType::kF32, {2, 4, 9, 32}, 7), random_tensor(DType::kF32, {2, 4, 9, 32}, 8),
        random_tensor(DType::kF32, {2, 4, 9, 32}, 9)}},
      {"gather",
       "graph g {\n  input %i: i64[n]\n" + constant("w", "f32[64,32]", 8192, 4) +
           "  %y: f32[n,32] = Gather@13(%w, %i) {axis=0}\n  output %y\n}\n",
       {HostTensor::of(DType::kI64, {4}, {3, 0, 63, 17})}},
  };
}

// Before anybody asks for nvJitLink.
class FakeLinker : public testing::Environment {
 public:
  void SetUp() override { setenv("TENON_LIBRARY_DIRS", TENON_FAKE_NVJITLINK_FOLDER, 1); }
};
inline testing::Environment* const kFakeLinker = testing::AddGlobalTestEnvironment(new FakeLinker);

inline Settings host_settings() {
  Settings settings;
  settings.host = codegen::detect_host();
  settings.host.threads = 2;
  settings.keep_texts = true;
  return settings;
}

inline Settings gpu_settings(const std::string& arch) {
  Settings settings = host_settings();
  settings.gpu = device::named_description(arch).target();
  return settings;
}

inline ir::Graph fused(ir::Graph graph, const Settings& settings) {
  return fuse(std::move(graph), {}, [&](const ir::Graph& whole, const ir::Node& node) {
    return supports(whole, node, settings);
  });
}

inline ir::Graph fused(const std::string& graph, const Settings& settings) {
  return fused(ir::parse(graph), settings);
}

inline std::vector<HostTensor> run_host(Program program, const Sample& sample) {
  const auto executable = run_on_host(std::move(program), 2);
  TestContext context(ir::parse(sample.graph), sample.inputs);
  executable->run(context);
  return context.take_outputs();
}

inline void expect_same_bits(const std::vector<HostTensor>& got,
                             const std::vector<HostTensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].dims, expected[i].dims);
    EXPECT_EQ(got[i].bytes, expected[i].bytes);
  }
}

template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

// Bits of a program's bytes change, and some of them end early: what comes is sound or refused.
inline void read_changed_bytes(const std::string& bytes) {
  std::mt19937 random(11);
  for (int i = 0; i < 600; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1 << (random() % 8));
    if (i % 4 == 0) changed.resize(random() % changed.size());
    (void)error_of([&] { check_program(program_from_bytes(changed).program, true, false); });
  }
}

class DeviceContext final : public RunContext {
 public:
  DeviceContext(const ir::Graph& graph, const std::vector<HostTensor>& inputs,
                std::shared_ptr<device::Device> device)
      : device_(std::move(device)), tensors_(inputs), stream_(device_) {
    for (const HostTensor& input : inputs) {
      inputs_.emplace_back(device_, input.bytes.size(), "input");
      stream_.copy(inputs_.back().address(), reinterpret_cast<device::Address>(input.bytes.data()),
                   input.bytes.size());
    }
    stream_.synchronize();
    for (const ir::ValueId id : graph.outputs())
      outputs_.push_back({graph.value(id).dtype, {}, {}});
    rooms_.resize(outputs_.size());
  }
  Input input(size_t index) override {
    return {reinterpret_cast<const void*>(inputs_[index].address()), tensors_[index].dims};
  }
  void* output(size_t index, std::span<const int64_t> dims) override {
    HostTensor& output = outputs_[index];
    output.dims.assign(dims.begin(), dims.end());
    output.bytes.resize(storage_bytes(output.dtype, output.elements()));
    rooms_[index] = device::Buffer(device_, output.bytes.size(), "output");
    return reinterpret_cast<void*>(rooms_[index].address());
  }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}

  std::vector<HostTensor> take_outputs() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      stream_.copy(reinterpret_cast<device::Address>(outputs_[i].bytes.data()), rooms_[i].address(),
                   outputs_[i].bytes.size());
    }
    stream_.synchronize();
    return std::move(outputs_);
  }

 private:
  std::shared_ptr<device::Device> device_;
  std::vector<HostTensor> tensors_, outputs_;
  device::Stream stream_;
  std::vector<device::Buffer> inputs_, rooms_;
};

class StubGpuTest : public testing::Test {
 protected:
  std::vector<HostTensor> run(Program program, const Sample& sample) {
    const auto executable = run_on_device(std::move(program), settings_.gpu.value(), device_, {});
    DeviceContext context(ir::parse(sample.graph), sample.inputs, device_);
    executable->run(context);
    return context.take_outputs();
  }

  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  Settings settings_ = [&] {
    Settings settings = host_settings();
    settings.gpu = device_->description().target();
    return settings;
  }();
};

}  // namespace tenon::kernels
