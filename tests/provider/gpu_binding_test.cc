// Runs of many bound buffers on a GPU that the stub driver plays.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "harness.h"
#include "plugin_allocations.h"
#include "stub_driver.h"

namespace tenon::testing {
namespace {

const bool stub_is_used = (use_stub_driver("devices 1"), true);

constexpr int kPairs = 40;
const std::vector<int64_t> kDims = {2, 64};

std::string name(const char* prefix, int number) { return prefix + std::to_string(number); }

// Each output is twice its input.
std::string many_pairs() {
  Graph graph;
  for (int i = 0; i < kPairs; ++i) {
    graph.input(name("x", i), kFloat, {"M", 64});
    graph.node("Add", {name("x", i), name("x", i)}, {name("y", i)});
    graph.output(name("y", i), kFloat, {"M", 64});
  }
  return model(graph);
}

// A session that captures its launches, and memory for all that goes in and out.
class BoundPairs {
 public:
  BoundPairs() {
    for (int i = 0; i < kPairs; ++i) {
      bind_input(i, static_cast<float>(i));
      bind_output(i);
    }
  }

  void bind_input(int i, float value) {
    const Ort::Value& x = values_.emplace_back(filled(value));
    binding_.BindInput(name("x", i).c_str(), x);
  }
  // Returns where output `i` is written from now on.
  const float* bind_output(int i) {
    const Ort::Value& y = values_.emplace_back(filled(-1));
    binding_.BindOutput(name("y", i).c_str(), y);
    return y.GetTensorData<float>();
  }
  float* input(int i) { return values_[static_cast<size_t>(2 * i)].GetTensorMutableData<float>(); }
  Ort::IoBinding& binding() { return binding_; }
  // Nothing waits: the stub is done when it returns.
  void run() {
    Ort::RunOptions options;
    options.AddConfigEntry("disable_synchronize_execution_providers", "1");
    session_.runtime_session().Run(options, binding_);
  }

 private:
  Ort::Value filled(float value) {
    Ort::Value made = Ort::Value::CreateTensor<float>(allocator_, kDims.data(), kDims.size());
    std::fill_n(made.GetTensorMutableData<float>(), kDims[0] * kDims[1], value);
    return made;
  }

  const Session session_{many_pairs(),
                         {{"claim", "all"}, {"enable_cuda_graph", "1"}},
                         {.cpu_fallback = false, .gpu = 0}};
  const Ort::Allocator allocator_{session_.runtime_session(), tenon_device(env(), 0).GetMemoryInfo(
                                                                  OrtDeviceMemoryType_DEFAULT)};
  Ort::IoBinding binding_{session_.runtime_session()};
  std::vector<Ort::Value> values_;
};

TEST(GpuBinding, AWarmRunOfManyBuffersAllocatesNothing) {
  BoundPairs bound;
  const long cold = count_plugin_allocations([&] { bound.run(); });
  if (cold < 0) GTEST_SKIP() << "a sanitizer allocates";
  EXPECT_GT(cold, 0);
  for (int i = 0; i < 3; ++i) bound.run();
  const long graphs = stub_calls("cuGraphLaunch"), calls = stub_calls("");
  EXPECT_EQ(count_plugin_allocations([&] { bound.run(); }), 0);
  EXPECT_EQ(stub_calls("cuGraphLaunch") - graphs, 1);
  // Two of them wait for the caller's work: on the default stream, before 1.25 on the device.
  EXPECT_EQ(stub_calls("") - calls, 5) << "none for a single buffer";
}

TEST(GpuBinding, ARunFollowsTheBufferThatIsBoundAnew) {
  BoundPairs bound;
  const float* before = bound.bind_output(17);
  for (int i = 0; i < 3; ++i) bound.run();
  EXPECT_EQ(before[0], 34);
  bound.bind_input(17, 5);
  bound.run();
  EXPECT_EQ(before[0], 10);
  const float* after = bound.bind_output(17);
  bound.bind_input(17, 6);
  bound.run();
  EXPECT_EQ(after[0], 12);
  EXPECT_EQ(before[0], 10);
}

// A stream of the caller's, of which neither the runtime nor the plugin was told, and on which
// nothing happens until somebody waits for it.
class ForeignStream {
 public:
  // Of its own, or the default one.
  explicit ForeignStream(bool is_own) {
    if (!is_own) return;
    EXPECT_EQ(call<int(void**, unsigned)>("cuStreamCreate")(&stream_, 1), 0);
  }
  ~ForeignStream() {
    if (stream_ != nullptr) call<int(void*)>("cuStreamDestroy_v2")(stream_);
  }

  void fill_with_zeros(float* memory, size_t count) {
    const auto address = reinterpret_cast<unsigned long long>(memory);
    auto* fill = call<int(unsigned long long, unsigned char, size_t, void*)>("cuMemsetD8Async");
    EXPECT_EQ(fill(address, 0, count * sizeof(float), stream_), 0);
  }

 private:
  template <typename Function>
  static Function* call(const char* name) {
    return reinterpret_cast<Function*>(stub_function(name));
  }
  void* stream_ = nullptr;
};

TEST(GpuBinding, SynchronizeInputsWaitsForStreamsOfOthers) {
  BoundPairs bound;
  const float* y = bound.bind_output(3);
  for (int i = 0; i < 3; ++i) bound.run();
  reinterpret_cast<int (*)()>(stub_function("cuCtxSynchronize"))();
  stub_reset();
  stub_script("lazy");
  ForeignStream foreign(/*is_own=*/true);
  foreign.fill_with_zeros(bound.input(3), static_cast<size_t>(kDims[0] * kDims[1]));
  // The oldest runtimes cannot ask a plugin to wait: there a Run waits itself.
  if (runtime_at_least(25)) bound.binding().SynchronizeInputs();
  bound.run();
  bound.binding().SynchronizeOutputs();
  if (!runtime_at_least(25)) bound.run();  // which waits for the one before
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(stub_reports(), "");
  stub_script("");
  stub_reset();
}

// As tests of the runtime do, which fill tensors on torch's stream and run at once.
TEST(GpuBinding, ARunWaitsForTheDefaultStream) {
  BoundPairs bound;
  const float* y = bound.bind_output(3);
  for (int i = 0; i < 3; ++i) bound.run();
  reinterpret_cast<int (*)()>(stub_function("cuCtxSynchronize"))();
  stub_reset();
  stub_script("lazy");
  ForeignStream foreign(/*is_own=*/false);
  foreign.fill_with_zeros(bound.input(3), static_cast<size_t>(kDims[0] * kDims[1]));
  bound.run();
  bound.binding().SynchronizeOutputs();
  if (!runtime_at_least(25)) bound.run();  // which waits for the one before
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(stub_reports(), "");
  stub_script("");
  stub_reset();
}

}  // namespace
}  // namespace tenon::testing
