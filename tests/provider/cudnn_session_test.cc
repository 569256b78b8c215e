// Convolutional networks on a GPU that the stub driver plays, with a cuDNN that a stub plays.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness.h"
#include "quantized_weight.h"
#include "stub_driver.h"
#include "tests/kernels/cudnn/stub/control.h"

namespace tenon::testing {
namespace {

using ::testing::HasSubstr;

const bool stubs_are_used = (use_stub_driver("devices 2; arch 9.0 8.0"),
                             setenv("TENON_CUDNN_LIBRARY", TENON_STUB_CUDNN, 1) == 0);
constexpr Settings kOnGpu{.cpu_fallback = false, .gpu = 0};

NodeDetails padded(int64_t pad) { return {{{"pads", std::vector<int64_t>{pad, pad, pad, pad}}}}; }

// A stem, a residual block, an activation that only kernels of ours have, pooling.
std::string network() {
  Graph graph;
  graph.input("x", kFloat, {"batch", 3, 12, 12});
  graph.constant("w0", random_floats({8, 3, 3, 3}, 1)).constant("b0", random_floats({8}, 2));
  graph.constant("w1", random_floats({8, 8, 3, 3}, 3)).constant("b1", random_floats({8}, 4));
  graph.constant("w2", random_floats({8, 1, 5, 5}, 5)).constant("b2", random_floats({8}, 6));
  graph.node("Conv", {"x", "w0", "b0"}, {"c0"}, padded(1)).node("Relu", {"c0"}, {"r0"});
  graph.node("Conv", {"r0", "w1", "b1"}, {"c1"}, padded(1)).node("Add", {"c1", "r0"}, {"s1"});
  graph.node("Relu", {"s1"}, {"r1"});
  NodeDetails depthwise = padded(2);
  depthwise.attributes.emplace_back("group", 8);
  graph.node("Conv", {"r1", "w2", "b2"}, {"c2"}, depthwise).node("HardSwish", {"c2"}, {"h"});
  graph.node(
      "MaxPool", {"h"}, {"p"},
      {{{"kernel_shape", std::vector<int64_t>{2, 2}}, {"strides", std::vector<int64_t>{2, 2}}}});
  graph.node("GlobalAveragePool", {"p"}, {"y"});
  return model(graph.output("y", kFloat, {"batch", 8, 1, 1}));
}

// What a text detector ends with: two sizes side by side, brought to the image's.
std::string detector() {
  Graph graph;
  graph.input("x", kFloat, {"batch", 3, 12, 12});
  graph.constant("w0", random_floats({8, 3, 3, 3}, 1))
      .constant("w1", random_floats({4, 8, 1, 1}, 2));
  graph.constant("w2", random_floats({8, 5, 2, 2}, 3)).constant("b2", random_floats({5}, 4));
  graph.constant("scales", floats({4}, {1, 1, 2, 2}));
  NodeDetails halved = padded(1);
  halved.attributes.emplace_back("strides", std::vector<int64_t>{2, 2});
  graph.node("Conv", {"x", "w0"}, {"c"}, halved).node("Conv", {"c", "w1"}, {"d"});
  graph.node("Resize", {"d", "", "scales"}, {"r"},
             {{{"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}}});
  graph.node("ConvTranspose", {"c", "w2", "b2"}, {"t"},
             {{{"strides", std::vector<int64_t>{2, 2}}}});
  graph.node("Concat", {"r", "t"}, {"j"}, {{{"axis", 1}}}).node("Sigmoid", {"j"}, {"y"});
  return model(graph.output("y", kFloat, {"batch", 9, 12, 12}));
}

// What tells a text's direction: halved until a window is larger than what is left of an image.
std::string direction() {
  const NodeDetails by_two = {
      {{"kernel_shape", std::vector<int64_t>{2, 2}}, {"strides", std::vector<int64_t>{2, 2}}}};
  Graph graph;
  graph.input("x", kFloat, {"batch", 3, "height", "width"});
  graph.constant("w0", random_floats({8, 3, 3, 3}, 1))
      .constant("w1", random_floats({8, 8, 3, 3}, 2));
  NodeDetails halved = padded(1);
  halved.attributes.emplace_back("strides", std::vector<int64_t>{2, 2});
  graph.node("Conv", {"x", "w0"}, {"c"}, halved).node("HardSwish", {"c"}, {"h"});
  graph.node("MaxPool", {"h"}, {"p"}, by_two).node("Conv", {"p", "w1"}, {"d"}, halved);
  graph.node("AveragePool", {"d"}, {"q"}, by_two).node("GlobalAveragePool", {"q"}, {"y"});
  return model(graph.output("y", kFloat, {"batch", 8, 1, 1}));
}

struct Form {
  std::vector<int64_t> filter;  // [8, M / group, k…]
  NodeDetails details;
  int64_t rank = 4;
};

std::vector<Form> transposed_forms() {
  using Ints = std::vector<int64_t>;
  return {
      {{8, 5, 4, 4}, {{{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}}},
      {{8, 3, 3, 3}, {{{"strides", Ints{2, 2}}, {"pads", Ints{0, 1, 1, 0}}}}},
      {{8, 3, 3, 3}, {{{"strides", Ints{2, 2}}, {"pads", Ints{0, 0, 2, 3}}}}},
      {{8, 2, 3, 2}, {{{"strides", Ints{2, 3}}, {"group", 4}, {"output_padding", Ints{1, 2}}}}},
      {{8, 1, 3, 3}, {{{"strides", Ints{1, 2}}, {"group", 8}, {"dilations", Ints{2, 3}}}}},
      {{8, 3, 3, 5}, {{{"strides", Ints{2, 2}}, {"auto_pad", "SAME_UPPER"}}}},
      {{8, 3, 4, 2}, {{{"strides", Ints{3, 1}}, {"auto_pad", "SAME_LOWER"}}}},
      {{8, 3, 1, 2}, {{{"strides", Ints{3, 4}}, {"auto_pad", "SAME_UPPER"}}}},
      {{8, 3, 3, 3}, {{{"strides", Ints{2, 2}}, {"auto_pad", "VALID"}}}},
      {{8, 3, 3, 3}, {{{"strides", Ints{2, 2}}, {"output_shape", Ints{14, 10}}}}},
      {{8, 3, 3, 3},
       {{{"strides", Ints{2, 2}}, {"output_shape", Ints{10, 12}}, {"auto_pad", "SAME_UPPER"}}}},
      {{8, 3, 2, 2}, {{{"strides", Ints{2, 2}}}}},
      {{8, 3, 5}, {{{"strides", Ints{3}}, {"pads", Ints{1, 2}}, {"output_padding", Ints{2}}}}, 3},
      {{8, 3, 2, 3, 3}, {{{"strides", Ints{1, 2, 2}}, {"pads", Ints{0, 1, 1, 0, 0, 1}}}}, 5},
  };
}

// Each form on its own output; the images of 6 x 6 seen as [8, 36] and [8, 3, 2, 6] as well.
std::string upsampler() {
  Graph graph;
  graph.input("x", kFloat, {"batch", 3, 12, 12}).constant("w", random_floats({8, 3, 3, 3}, 1));
  NodeDetails halved = padded(1);
  halved.attributes.emplace_back("strides", std::vector<int64_t>{2, 2});
  graph.node("Conv", {"x", "w"}, {"c4"}, halved);
  graph.constant("line", int64s({3}, {0, 8, 36})).constant("box", int64s({5}, {0, 8, 3, 2, 6}));
  graph.node("Reshape", {"c4", "line"}, {"c3"}).node("Reshape", {"c4", "box"}, {"c5"});
  unsigned seed = 1;
  for (const Form& form : transposed_forms()) {
    const std::string number = std::to_string(seed++);
    int64_t groups = 1;
    for (const auto& [name, value] : form.details.attributes) {
      if (name == "group") groups = std::get<int64_t>(value);
    }
    graph.constant("w" + number, random_floats(form.filter, seed));
    graph.constant("b" + number, random_floats({form.filter[1] * groups}, seed + 50));
    graph.node("ConvTranspose", {"c" + std::to_string(form.rank), "w" + number, "b" + number},
               {"t" + number}, form.details);
    graph.node("HardSwish", {"t" + number}, {"y" + number});
    std::vector<Dim> dims;
    for (int64_t i = 0; i < form.rank; ++i) {
      dims.emplace_back(("d" + number + std::to_string(i)).c_str());
    }
    graph.output("y" + number, kFloat, dims);
  }
  return model(graph);
}

// The next call of it, once.
void fail(const char* function) {
  void* library = dlopen(TENON_STUB_CUDNN, RTLD_NOW | RTLD_LOCAL);
  const auto told = reinterpret_cast<StubFail>(dlsym(library, "stubCudnnFail"));
  ASSERT_NE(told, nullptr);
  told(function);
}

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    env();
    stub_reset();
    stub_script("devices 2; arch 9.0 8.0");
  }
  void TearDown() override { EXPECT_EQ(stub_reports(), ""); }

  static void expect_like_the_cpu(const Session& gpu, const Session& cpu, int64_t batch,
                                  int64_t height = 12, int64_t width = 12) {
    const Tensor x = random_floats({batch, 3, height, width}, static_cast<unsigned>(batch));
    const std::vector<Tensor> actual = gpu.run({{"x", x}}), expected = cpu.run({{"x", x}});
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      SCOPED_TRACE("output " + std::to_string(i));
      expect_near(actual[i], expected[i]);
    }
  }
  static void expect_near(const Tensor& actual, const Tensor& expected) {
    ASSERT_EQ(actual.dims, expected.dims);
    for (size_t i = 0; i < static_cast<size_t>(actual.elements()); ++i) {
      ASSERT_NEAR(actual.at(i), expected.at(i), 1e-4 * (1 + std::abs(expected.at(i)))) << i;
    }
  }
};

TEST_F(Cudnn, AConvolutionalNetworkIsOnePartition) {
  const TemporaryFolder folder;
  const Session gpu(network(), {{"report_file", folder.path("r.json")}}, kOnGpu);
  EXPECT_EQ(gpu.partitions().size(), 1U);
  const Session cpu(network(), {{"exclude_ops", "Conv"}});
  for (const int64_t batch : {1, 3, 1}) expect_like_the_cpu(gpu, cpu, batch);
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  std::vector<std::string> ops;
  for (const auto& fusion : report["graphs"][0]["partitions"][0]["fusions"]) {
    if (fusion["chosen"] == "cudnn") ops.push_back(fusion["kind"]);
  }
  EXPECT_THAT(ops, ::testing::UnorderedElementsAre("com.microsoft::FusedConv",
                                                   "com.microsoft::FusedConv", "Conv", "MaxPool"));
}

TEST_F(Cudnn, ADetectorIsOnePartition) {
  for (const char* precision : {"exact", "tf32"}) {
    const Session gpu(detector(), {{"precision_mode", precision}}, kOnGpu);
    EXPECT_EQ(gpu.partitions().size(), 1U);
    const Session cpu(detector(), {{"exclude_ops", "Conv,Resize,ConvTranspose"}});
    for (const int64_t batch : {1, 3}) expect_like_the_cpu(gpu, cpu, batch);
  }
}

TEST_F(Cudnn, TransposedConvolutionsOfEveryFormAreOnePartition) {
  const Session gpu(upsampler(), {}, kOnGpu);
  EXPECT_EQ(gpu.partitions().size(), 1U);
  const Session cpu(upsampler(), {{"exclude_ops", "Conv,ConvTranspose,HardSwish"}});
  for (const int64_t batch : {1, 2}) expect_like_the_cpu(gpu, cpu, batch);
}

TEST_F(Cudnn, TheSmallestImagesRun) {
  const Session gpu(direction(), {}, kOnGpu);
  EXPECT_EQ(gpu.partitions().size(), 1U);
  const Session cpu(direction(), {{"exclude_ops", "Conv,HardSwish,GlobalAveragePool"}});
  for (const auto& [height, width] : {std::pair{8, 8}, {1, 1}, {3, 17}, {16, 5}, {2, 40}}) {
    expect_like_the_cpu(gpu, cpu, 2, height, width);
  }
  EXPECT_THAT(error_of([&] {
                gpu.run({{"x", random_floats({1, 3, 0, 8})}});
              }),
              HasSubstr("do not fit"));
}

TEST_F(Cudnn, ARunWhoseCallFailsIsAnErrorAndTheNextOneIsNot) {
  const Session gpu(network(), {}, kOnGpu), cpu(network(), {{"exclude_ops", "Conv"}});
  expect_like_the_cpu(gpu, cpu, 2);
  fail("cudnnSetStream");
  EXPECT_THAT(error_of([&] {
                gpu.run({{"x", random_floats({2, 3, 12, 12})}});
              }),
              HasSubstr("the stub's cudnnSetStream was told to fail"));
  expect_like_the_cpu(gpu, cpu, 2);
  // While a plan for sizes that are new is made.
  fail("cudnnBackendFinalize");
  EXPECT_THAT(error_of([&] {
                gpu.run({{"x", random_floats({5, 3, 12, 12})}});
              }),
              HasSubstr("was told to fail"));
  expect_like_the_cpu(gpu, cpu, 5);
}

// Seen with cuDNN 9.14 on an H200.
TEST_F(Cudnn, AnEngineThatFailsInARunIsReplacedWithAWarning) {
  Settings settings = kOnGpu;
  settings.log_level = ORT_LOGGING_LEVEL_WARNING;
  const Session gpu(network(), {}, settings), cpu(network(), {{"exclude_ops", "Conv"}});
  expect_like_the_cpu(gpu, cpu, 2);
  take_log();
  fail("cudnnBackendExecute");
  expect_like_the_cpu(gpu, cpu, 2);
  EXPECT_THAT(take_log(), ::testing::Contains(::testing::AllOf(
                              HasSubstr("the stub's cudnnBackendExecute was told to fail"),
                              HasSubstr("engine 0 runs in its place"))));
  expect_like_the_cpu(gpu, cpu, 2);
  EXPECT_THAT(take_log(), ::testing::Not(::testing::Contains(HasSubstr("in its place"))));
}

TEST_F(Cudnn, WithoutItConvolutionsAreLeftOutWithThatReason) {
  const TemporaryFolder folder;
  const Session gpu(network(), {{"enable_cudnn", "0"}, {"report_file", folder.path("r.json")}},
                    {.gpu = 0});
  expect_like_the_cpu(gpu, Session(network(), {{"exclude_ops", "Conv"}}), 2);
  EXPECT_THAT(read_file(folder.path("r.json")),
              HasSubstr("only cuDNN runs it, and enable_cudnn is 0"));
}

// Written by one session, opened by another: the plans are made where it opens.
class CudnnContext : public Cudnn, public ::testing::WithParamInterface<bool> {
 protected:
  std::string path() const { return folder_.path("model_ctx.onnx"); }
  Settings settings(bool writes) const {
    Settings made = kOnGpu;
    made.log_level = ORT_LOGGING_LEVEL_WARNING;
    made.entries = {{"ep.context_file_path", path()}};
    if (writes) made.entries.emplace_back("ep.context_enable", "1");
    // Nothing lies in a file here: constants are stored as they are, and packed when it opens.
    if (writes && GetParam()) {
      made.entries.emplace_back("ep.enable_weightless_ep_context_nodes", "1");
    }
    return made;
  }
  Session open(Options options = {}) const {
    return Session(read_file(path()), options, settings(false));
  }
  static std::string bytes_of(const Session& session, int64_t batch) {
    const Tensor x = random_floats({batch, 3, 12, 12}, static_cast<unsigned>(batch));
    return session.run({{"x", x}}).at(0).bytes;
  }
  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Forms, CudnnContext, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Weightless" : "Whole"; });

TEST_P(CudnnContext, GivesTheSameBits) {
  for (const std::string& of : {network(), detector(), upsampler()}) {
    const Session written(of, {}, settings(true));
    EXPECT_EQ(written.partitions().size(), 1U);
    const Session opened = open();
    EXPECT_EQ(opened.partitions().size(), 1U);
    for (const int64_t batch : {1, 3, 1}) {
      EXPECT_EQ(bytes_of(opened, batch), bytes_of(written, batch));
    }
    std::filesystem::remove(path());  // the runtime writes over nothing
  }
}

TEST_P(CudnnContext, HoldsSeveralGpus) {
  Session(network(), {{"target_arch", "sm_80,sm_90a"}}, settings(true));
  const Session plain(network(), {}, kOnGpu), opened = open();
  EXPECT_EQ(bytes_of(opened, 2), bytes_of(plain, 2));
}

TEST_P(CudnnContext, DisabledCudnnIsAReason) {
  { const Session written(network(), {}, settings(true)); }
  take_log();
  EXPECT_THAT(error_of([&] {
                open({{"enable_cudnn", "0"}});
              }),
              HasSubstr("it calls cuDNN, and enable_cudnn is 0"));
}

TEST_F(Cudnn, AGpuThatItDoesNotStartOnIsAReason) {
  const TemporaryFolder folder;
  fail("cudnnCreate");
  const Session gpu(network(), {{"report_file", folder.path("r.json")}}, {.gpu = 1});
  expect_like_the_cpu(gpu, Session(network(), {{"exclude_ops", "Conv"}}), 2);
  EXPECT_THAT(read_file(folder.path("r.json")), HasSubstr("cudnnCreate failed"));
}

}  // namespace
}  // namespace tenon::testing
