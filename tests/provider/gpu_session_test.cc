// Sessions on GPUs that the stub driver plays: devices, memory, copies, streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>

#include "harness.h"
#include "quantized_weight.h"
#include "stub_driver.h"

namespace tenon::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Settings kOnGpu{.cpu_fallback = false, .gpu = 0};

const bool stub_is_used = (use_stub_driver("devices 2; arch 9.0 8.0"), true);

// Whatever a test does, the driver must have been used rightly.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    env();
    stub_reset();
    stub_script("devices 2; arch 9.0 8.0");
  }
  void TearDown() override { EXPECT_EQ(stub_reports(), ""); }
};

std::string pointwise_model() {
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).constant("gain", random_floats({64}, 1));
  graph.node("Mul", {"x", "gain"}, {"h"}).node("Add", {"h", "x"}, {"y"});
  return model(graph.output("y", kFloat, {"M", 64}));
}

std::string product_model() {
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).constant("w", random_floats({64, 32}, 2));
  graph.node("MatMul", {"x", "w"}, {"h"}).node("Relu", {"h"}, {"y"});
  return model(graph.output("y", kFloat, {"M", 32}));
}

// Two chains and between them two ops that no provider but the CPU's runs.
std::string partly_claimable_model() {
  Graph graph("partly");
  graph.input("x", kFloat, {"M", 64}).node("Softmax", {"x"}, {"h"});
  graph.node("Cast", {"h"}, {"text"}, {{{"to", int64_t{kString}}}});
  graph.node("Cast", {"text"}, {"z"}, {{{"to", int64_t{kFloat}}}});
  graph.node("Mul", {"z", "x"}, {"m"}).node("Add", {"m", "z"}, {"y"});
  return model(graph.output("y", kFloat, {"M", 64}));
}

// The same two ops, and sizes that are made in front of them and used on both sides.
std::string sizes_across_the_cpu_model() {
  Graph graph("across");
  graph.input("x", kFloat, {"M", 64}).constant("flat", int64s({1}, {-1}));
  graph.node("Shape", {"x"}, {"sizes"}).node("Softmax", {"x"}, {"h"});
  graph.node("Reshape", {"h", "sizes"}, {"g"}).node("Reshape", {"g", "flat"}, {"f"});
  graph.node("Cast", {"f"}, {"text"}, {{{"to", int64_t{kString}}}});
  graph.node("Cast", {"text"}, {"z"}, {{{"to", int64_t{kFloat}}}});
  graph.node("Reshape", {"z", "sizes"}, {"r"}).node("Add", {"r", "x"}, {"y"});
  return model(graph.output("y", kFloat, {"M", 64}));
}

const Options kClaimAll = {{"claim", "all"}};

void expect_close(const Tensor& actual, const Tensor& expected, float tolerance = 1e-4f) {
  ASSERT_EQ(actual.dims, expected.dims);
  for (size_t i = 0; i < static_cast<size_t>(actual.elements()); ++i) {
    ASSERT_NEAR(actual.at(i), expected.at(i), tolerance * (1 + std::abs(expected.at(i)))) << i;
  }
}

void expect_like_the_cpu(const std::string& bytes, const Options& options,
                         const Settings& settings = kOnGpu) {
  const Session gpu(bytes, options, settings);
  const Session cpu(bytes, kClaimAll);
  for (const int64_t rows : {1, 7, 130}) {
    const Tensor x = random_floats({rows, 64}, static_cast<unsigned>(rows));
    expect_close(gpu.run({{"x", x}}).at(0), cpu.run({{"x", x}}).at(0));
  }
}

std::unordered_map<std::string, std::string> metadata(const Ort::ConstEpDevice& device) {
  return device.EpMetadata().GetKeyValuePairs();
}

TEST_F(Gpu, DevicesComeFirstAndTheCpuLast) {
  const auto devices = tenon_devices(env());
  ASSERT_EQ(devices.size(), 3U);
  EXPECT_EQ(devices[0].Device().Type(), OrtHardwareDeviceType_GPU);
  EXPECT_EQ(metadata(devices[0]).at("tenon_target"), "gpu");
  EXPECT_EQ(metadata(devices[0]).at("cuda_device_id"), "0");
  EXPECT_EQ(metadata(devices[0]).at("cuda_compute_capability"), "9.0");
  EXPECT_EQ(metadata(devices[1]).at("cuda_device_id"), "1");
  EXPECT_EQ(metadata(devices[1]).at("cuda_compute_capability"), "8.0");
  EXPECT_EQ(metadata(devices[2]).at("tenon_target"), "cpu");
}

TEST_F(Gpu, ListingAndRegisteringTouchesNoMemory) {
  env().RegisterExecutionProviderLibrary("again", plugin_path());
  EXPECT_EQ(stub_calls("cuDevicePrimaryCtxRetain"), 0);
  EXPECT_EQ(stub_calls("cuMemAlloc_v2"), 0);
  env().UnregisterExecutionProviderLibrary("again");
}

TEST_F(Gpu, RunsAPointwiseChain) { expect_like_the_cpu(pointwise_model(), kClaimAll); }

TEST_F(Gpu, RunsAProduct) {
  if (!runtime_at_least(27))
    GTEST_SKIP() << "the stub compiles a product for a minute: once is enough";
  expect_like_the_cpu(product_model(), {});
}

// The stub holds the TMA descriptor of each operand to what the kernel makes of it.
TEST_F(Gpu, Tf32IsRoundedWhereItIsAskedFor) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "once is enough";
  const TemporaryFolder folder;
  const Options options = {{"precision_mode", "tf32"}, {"report_file", folder.path("r.json")}};
  const Session gpu(product_model(), options, kOnGpu), cpu(product_model(), kClaimAll);
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  const auto& fusion = report["graphs"][0]["partitions"][0]["fusions"][0];
  EXPECT_EQ(fusion["chosen"], "pipelined");
  for (const int64_t rows : {1, 7, 130}) {
    const Tensor x = random_floats({rows, 64}, static_cast<unsigned>(rows));
    const Tensor rounded = gpu.run({{"x", x}}).at(0), exact = cpu.run({{"x", x}}).at(0);
    expect_close(rounded, exact, 0x1p-7f);
    float furthest = 0;
    for (size_t i = 0; i < static_cast<size_t>(exact.elements()); ++i) {
      furthest = std::max(furthest, std::abs(rounded.at(i) - exact.at(i)));
    }
    EXPECT_GT(furthest, 0x1p-13f) << rows;
  }
}

TEST_F(Gpu, TheSecondOneRunsToo) {
  expect_like_the_cpu(pointwise_model(), kClaimAll, {.cpu_fallback = false, .gpu = 1});
}

TEST_F(Gpu, NodesOfTheCpuStandBetweenItsPartitions) {
  expect_like_the_cpu(partly_claimable_model(), kClaimAll, {.gpu = 0});
  EXPECT_EQ(Session(partly_claimable_model(), kClaimAll, {.gpu = 0}).partitions().size(), 2U);
}

TEST_F(Gpu, SizesThatAPartitionMadeServeTheOneBehindIt) {
  const std::string bytes = sizes_across_the_cpu_model();
  expect_like_the_cpu(bytes, kClaimAll, {.gpu = 0});
  const Session session(bytes, kClaimAll, {.gpu = 0});
  EXPECT_EQ(session.partitions().size(), 2U);
  EXPECT_EQ(session.claimed_nodes(), 6U);
}

TEST_F(Gpu, SizesThatAnotherProviderMadeAreReadFromTheDevice) {
  const Options options = {{"claim", "all"}, {"exclude_ops", "Shape"}};
  expect_like_the_cpu(sizes_across_the_cpu_model(), options, {.gpu = 0});
  EXPECT_EQ(Session(sizes_across_the_cpu_model(), options, {.gpu = 0}).claimed_nodes(), 5U);
}

TEST_F(Gpu, GraphsOfPartitionsGiveTheSame) {
  expect_like_the_cpu(pointwise_model(), {{"claim", "all"}, {"enable_cuda_graph", "1"}});
  const Session session(pointwise_model(), {{"claim", "all"}, {"enable_cuda_graph", "1"}}, kOnGpu);
  const Tensor x = random_floats({5, 64});
  const std::string first = session.run({{"x", x}}).at(0).bytes;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(session.run({{"x", x}}).at(0).bytes, first);
  EXPECT_GT(stub_calls("cuGraphLaunch"), 0);
}

TEST_F(Gpu, ConcurrentRunsGiveTheSameBits) {
  const Session session(pointwise_model(), kClaimAll, kOnGpu);
  std::vector<Tensor> inputs, expected;
  for (int i = 0; i < 4; ++i) {
    inputs.push_back(random_floats({1 + 5 * i, 64}, static_cast<unsigned>(i)));
    expected.push_back(session.run({{"x", inputs.back()}}).at(0));
  }
  std::atomic<int> different = 0;
  const auto work = [&](size_t thread) {
    for (size_t i = 0; i < 50; ++i) {
      const size_t which = (thread + i) % 4;
      if (session.run({{"x", inputs[which]}}).at(0).bytes != expected[which].bytes) ++different;
    }
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  EXPECT_EQ(different, 0);
}

TEST_F(Gpu, SessionsComeAndGoWhileAnotherConcurrentlyRuns) {
  const Session staying(pointwise_model(), kClaimAll, kOnGpu);
  const Tensor x = random_floats({6, 64});
  const std::string expected = staying.run({{"x", x}}).at(0).bytes;
  std::atomic<bool> done = false;
  std::atomic<int> different = 0;
  std::thread runner([&] {
    while (!done) different += staying.run({{"x", x}}).at(0).bytes != expected;
  });
  for (int i = 0; i < 20; ++i) Session(pointwise_model(), kClaimAll, kOnGpu).run({{"x", x}});
  done = true;
  runner.join();
  EXPECT_EQ(different, 0);
}

TEST_F(Gpu, BoundMemoryIsUsedWhereItIs) {
  const Session session(pointwise_model(), kClaimAll, kOnGpu);
  const Ort::ConstMemoryInfo place =
      tenon_device(env(), 0).GetMemoryInfo(OrtDeviceMemoryType_DEFAULT);
  const Ort::Allocator allocator(session.runtime_session(), place);
  const std::vector<int64_t> dims = {3, 64};
  Ort::Value x = Ort::Value::CreateTensor<float>(allocator, dims.data(), 2);
  Ort::Value y = Ort::Value::CreateTensor<float>(allocator, dims.data(), 2);
  const Tensor host = random_floats(dims, 9);
  std::memcpy(x.GetTensorMutableRawData(), host.bytes.data(), host.bytes.size());  // the stub's

  Ort::IoBinding binding(session.runtime_session());
  binding.BindInput("x", x);
  binding.BindOutput("y", y);
  const long copies = stub_calls("cuMemcpyAsync");
  session.runtime_session().Run(Ort::RunOptions{}, binding);
  session.runtime_session().Run(Ort::RunOptions{}, binding);
  // Values that follow from shapes may be sent; the tensors are not.
  EXPECT_LE(stub_calls("cuMemcpyAsync") - copies, 1);
  const Tensor expected = Session(pointwise_model(), kClaimAll).run({{"x", host}}).at(0);
  EXPECT_EQ(std::memcmp(y.GetTensorRawData(), expected.bytes.data(), expected.bytes.size()), 0);
}

TEST_F(Gpu, AllocatorsTellWhatTheyHold) {
  const Session session(pointwise_model(), {{"claim", "all"}, {"memory_limit", "67108864"}},
                        kOnGpu);
  session.run({{"x", random_floats({4, 64})}});
  const Ort::ConstMemoryInfo place =
      tenon_device(env(), 0).GetMemoryInfo(OrtDeviceMemoryType_DEFAULT);
  const Ort::Allocator allocator(session.runtime_session(), place);
  const auto stats = allocator.GetStats().GetKeyValuePairs();
  EXPECT_EQ(stats.at("Limit"), "67108864");
  EXPECT_GT(std::stoll(stats.at("NumAllocs")), 0);
  EXPECT_GT(std::stoll(stats.at("TotalAllocated")), 0);
}

// Nobody waits for indices on a device, and still the Run that brought a bad one fails.
TEST_F(Gpu, AnIndexOutOfBoundsFailsItsRun) {
  Graph graph;
  graph.input("ids", kInt64, {"M"}).constant("table", random_floats({10, 4}));
  graph.node("Gather", {"table", "ids"}, {"rows"}, {.name = "lookup"});
  const Session session(model(graph.output("rows", kFloat, {"M", 4})), kClaimAll, kOnGpu);
  EXPECT_EQ(session.run({{"ids", int64s({2}, {9, -10})}}).at(0).elements(), 8);
  EXPECT_THAT(error_of([&] {
                session.run({{"ids", int64s({2}, {3, 10})}});
              }),
              HasSubstr("out of bounds"));
  EXPECT_EQ(session.run({{"ids", int64s({1}, {3})}}).at(0).elements(), 4);
}

TEST_F(Gpu, TheReportTellsWhatCreatingTheSessionTook) {
  const TemporaryFolder folder;
  Session(pointwise_model(), {{"claim", "all"}, {"report_file", folder.path("report.json")}},
          kOnGpu);
  const auto report = nlohmann::json::parse(read_file(folder.path("report.json")));
  const nlohmann::json& partition = report["graphs"][0]["partitions"][0];
  for (const char* phase : {"fusions", "lowering", "compiling", "weights", "machine code"}) {
    ASSERT_TRUE(partition["phases_ms"].contains(phase)) << phase;
    EXPECT_LE(partition["phases_ms"][phase], partition["compile_ms"]) << phase;
  }
  EXPECT_GT(report["graphs"][0]["claim_ms"], 0.0);
}

// h goes to the CPU, z comes back: two casts by way of strings.
TEST_F(Gpu, WhatNodesInTheMiddleCostIsTold) {
  const TemporaryFolder folder;
  take_log();
  const auto cuts_of = [&](const std::string& bytes, Settings settings) {
    settings.log_level = ORT_LOGGING_LEVEL_WARNING;
    Session(bytes, {{"claim", "all"}, {"report_file", folder.path("report.json")}}, settings);
    return nlohmann::json::parse(read_file(folder.path("report.json")))["graphs"][0]["cuts"];
  };
  const nlohmann::json cuts = cuts_of(partly_claimable_model(), {.gpu = 0});
  EXPECT_EQ(cuts["to_cpu"], 1);
  EXPECT_EQ(cuts["to_gpu"], 1);
  EXPECT_EQ(cuts["bytes"], 0);
  EXPECT_EQ(cuts["open_sizes"], nlohmann::json::array({"f32[M,64]"}));
  EXPECT_EQ(cuts["nodes"].size(), 2U);
  EXPECT_GT(cuts["microseconds"], 0.0);
  const std::vector<std::string> log = take_log();
  EXPECT_THAT(log, Contains(HasSubstr("run on the CPU in the middle of the graph")));

  EXPECT_TRUE(cuts_of(pointwise_model(), {.gpu = 0}).is_null());
  EXPECT_TRUE(cuts_of(partly_claimable_model(), {}).is_null());  // the CPU copies nothing
}

TEST_F(Gpu, ASessionAfterTheFirstCompilesNothing) {
  const TemporaryFolder folder;
  const auto kernels_of = [&](const char* file) {
    Session(pointwise_model(), {{"claim", "all"}, {"report_file", folder.path(file)}}, kOnGpu);
    return nlohmann::json::parse(
        read_file(folder.path(file)))["graphs"][0]["partitions"][0]["kernels"];
  };
  kernels_of("first.json");
  const auto kernels = kernels_of("second.json");
  ASSERT_FALSE(kernels.empty());
  for (const auto& kernel : kernels) {
    EXPECT_EQ(kernel["shared"], true);
    EXPECT_NE(kernel["name"], "");
    EXPECT_GT(kernel["compile_ms"], 0.0);
  }
}

TEST_F(Gpu, TheReportNamesTheDevice) {
  const TemporaryFolder folder;
  Session(pointwise_model(), {{"claim", "all"}, {"report_file", folder.path("r.json")}}, kOnGpu);
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  EXPECT_EQ(report["device"]["kind"], "gpu");
  EXPECT_EQ(report["device"]["present"], true);
  EXPECT_GT(report["host"].get<std::string>().size(), 3U);
  EXPECT_EQ(report["device"]["arch"], "sm_90a");
  EXPECT_EQ(report["device"]["device_id"], 0);
  EXPECT_EQ(report["device"]["cost_model"], "measured on H200");
}

TEST_F(Gpu, TheCallersStreamIsUsed) {
  using Create = int (*)(void**, unsigned);
  using Destroy = int (*)(void*);
  const Tensor x = random_floats({3, 64});
  const Session opener(pointwise_model(), kClaimAll, kOnGpu);
  const Tensor expected = opener.run({{"x", x}}).at(0);
  void* stream = nullptr;
  ASSERT_EQ(reinterpret_cast<Create>(stub_function("cuStreamCreate"))(&stream, 1), 0);
  const std::string pointer = std::to_string(reinterpret_cast<uintptr_t>(stream));
  {
    const Session session(pointwise_model(), {{"claim", "all"}, {"user_compute_stream", pointer}},
                          kOnGpu);
    const long streams = stub_calls("cuStreamCreate");
    EXPECT_EQ(session.run({{"x", x}}).at(0).bytes, expected.bytes);
    EXPECT_EQ(stub_calls("cuStreamCreate"), streams);
  }
  EXPECT_EQ(reinterpret_cast<Destroy>(stub_function("cuStreamDestroy_v2"))(stream), 0);
}

TEST_F(Gpu, WholeRunsAreReplayedOnRequest) {
  if (!runtime_at_least(26)) GTEST_SKIP() << "the runtime captures for plugins from 1.26 on";
  const Session session(
      pointwise_model(),
      {{"claim", "all"}, {"enable_cuda_graph", "1"}, {"cuda_graph_scope", "session"}}, kOnGpu);
  const Ort::ConstMemoryInfo place =
      tenon_device(env(), 0).GetMemoryInfo(OrtDeviceMemoryType_DEFAULT);
  const Ort::Allocator allocator(session.runtime_session(), place);
  const std::vector<int64_t> dims = {3, 64};
  Ort::Value x = Ort::Value::CreateTensor<float>(allocator, dims.data(), 2);
  Ort::Value y = Ort::Value::CreateTensor<float>(allocator, dims.data(), 2);
  Ort::IoBinding binding(session.runtime_session());
  binding.BindInput("x", x);
  binding.BindOutput("y", y);
  const Session cpu(pointwise_model(), kClaimAll);
  for (const unsigned seed : {1U, 2U, 3U}) {
    const Tensor host = random_floats(dims, seed);
    std::memcpy(x.GetTensorMutableRawData(), host.bytes.data(), host.bytes.size());
    session.runtime_session().Run(Ort::RunOptions{}, binding);
    const std::string expected = cpu.run({{"x", host}}).at(0).bytes;
    EXPECT_EQ(std::memcmp(y.GetTensorRawData(), expected.data(), expected.size()), 0) << seed;
  }
  EXPECT_GE(stub_calls("cuGraphLaunch"), 3);
}

TEST_F(Gpu, WeightsListedAsInputsAreComparedOnTheDevice) {
  const Tensor gain = random_floats({64}, 1), x = random_floats({2, 64});
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).default_input("gain", gain);
  graph.node("Mul", {"x", "gain"}, {"h"}).node("Add", {"h", "x"}, {"y"});
  const Session session(model(graph.output("y", kFloat, {"M", 64})), kClaimAll, kOnGpu);
  const std::string expected = Session(pointwise_model(), kClaimAll).run({{"x", x}}).at(0).bytes;
  EXPECT_EQ(session.run({{"x", x}}).at(0).bytes, expected);
  const long copies = stub_calls("cuMemcpyAsync");
  EXPECT_EQ(session.run({{"x", x}}).at(0).bytes, expected);
  EXPECT_EQ(stub_calls("cuMemcpyAsync") - copies, 2) << "x and y, and no default again";
  EXPECT_EQ(session.run({{"x", x}, {"gain", gain}}).at(0).bytes, expected);
  const std::string message = error_of([&] {
    session.run({{"x", x}, {"gain", random_floats({64}, 2)}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("gain"), HasSubstr("default value")));
  EXPECT_EQ(session.run({{"x", x}}).at(0).bytes, expected);
}

TEST_F(Gpu, ContradictionsNameBothSides) {
  const auto refusal = [](const Options& options, int gpu) {
    return error_of([&] { Session(product_model(), options, {.gpu = gpu}); });
  };
  EXPECT_THAT(refusal({{"target", "cpu"}}, 0), AllOf(HasSubstr("target=cpu"), HasSubstr("GPU")));
  EXPECT_THAT(refusal({{"target", "gpu"}}, -1), AllOf(HasSubstr("target=gpu"), HasSubstr("CPU")));
  EXPECT_THAT(refusal({{"device_id", "1"}}, 0),
              AllOf(HasSubstr("device_id=1"), HasSubstr("GPU 0")));
  EXPECT_THAT(refusal({{"target_arch", "sm_1"}}, 0), HasSubstr("sm_90a"));
  EXPECT_THAT(refusal({{"target", "cpu"}, {"target_arch", "sm_80"}}, -1), HasSubstr("leave one"));
}

TEST_F(Gpu, AnAbsentGpuIsCompiledForAndNotRun) {
  for (const int gpu : {0, -1}) {
    const Session session(pointwise_model(), {{"claim", "all"}, {"target_arch", "sm_120a"}},
                          {.gpu = gpu});
    const std::string message = error_of([&] { session.run({{"x", random_floats({1, 64})}}); });
    EXPECT_THAT(message, HasSubstr("not in this machine")) << gpu;
  }
}

TEST_F(Gpu, AVirtualRegistrationOffersAGpuToCompileFor) {
  env().RegisterExecutionProviderLibrary("tenon.virtual", plugin_path());
  const auto devices = tenon_devices(env());
  const auto found = std::ranges::find_if(devices, [](const Ort::ConstEpDevice& device) {
    return device.Device().Metadata().GetKeyValuePairs().contains("is_virtual");
  });
  ASSERT_NE(found, devices.end());
  // Tools list a provider's own words about its devices, not the hardware's.
  const auto words = found->EpMetadata().GetKeyValuePairs();
  EXPECT_EQ(words.at("is_virtual"), "1");
  EXPECT_THAT(words.at("cuda_device_name"), ::testing::StartsWith("virtual "));
  {
    Ort::SessionOptions options;
    options.AppendExecutionProvider_V2(env(), {*found},
                                       std::unordered_map<std::string, std::string>{});
    const std::string bytes = pointwise_model();
    Ort::Session session(env(), bytes.data(), bytes.size(), options);
  }
  env().UnregisterExecutionProviderLibrary("tenon.virtual");
}

TEST_F(Gpu, TwoInOneSessionAreRefused) {
  for (const std::vector<int>& more : {std::vector{1}, std::vector{0}, std::vector{1, -1}}) {
    const std::string message =
        error_of([&] { Session(product_model(), {}, {.gpu = 0, .more = more}); });
    EXPECT_THAT(message, AllOf(HasSubstr("2 GPUs"), HasSubstr("one process per GPU")));
  }
}

// onnxruntime_perf_test gives a session every device of a provider.
TEST_F(Gpu, TheCpuMayComeAlong) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "the runtime itself refuses devices of two kinds";
  const auto launches = [](const Options& options) {
    const long before = stub_calls("cuLaunchKernel");
    expect_like_the_cpu(pointwise_model(), options,
                        {.cpu_fallback = false, .gpu = 0, .more = {-1}});
    return stub_calls("cuLaunchKernel") - before;
  };
  EXPECT_EQ(launches(kClaimAll), 3);
  // A real GPU's memory cannot be read by the CPU, so nothing may be brought there for its nodes.
  const long copies = stub_calls("cuMemcpyAsync");
  EXPECT_EQ(launches({{"claim", "all"}, {"target", "cpu"}}), 0);
  EXPECT_EQ(stub_calls("cuMemcpyAsync"), copies);
}

}  // namespace
}  // namespace tenon::testing
