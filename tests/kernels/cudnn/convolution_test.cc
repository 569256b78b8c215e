// Convolutions and poolings against the float64 reference: on a GPU by the real cuDNN, elsewhere by
// the stubs of driver and library.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

#include "codegen/arch_spec.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/device.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using reference::ReferenceTensor;

struct Case {
  std::string name;
  std::string attributes;
  std::vector<int64_t> x, w, y;  // an empty w: a pooling
  bool bias = true, summand = false, relu = false;
  std::string op = "Conv";
  bool large = false;  // too slow for a stub that computes on one core

  Case without_bias() const {
    return with([](Case& made) { made.bias = false; });
  }
  Case with_summand() const {
    return with([](Case& made) { made.summand = true; });
  }
  Case with_relu() const {
    return with([](Case& made) { made.relu = true; });
  }
  Case of_real_size() const {
    return with([](Case& made) { made.large = true; });
  }

 private:
  template <typename Change>
  Case with(const Change& change) const {
    Case made = *this;
    change(made);
    return made;
  }
};

using Dims = std::vector<int64_t>;

Case conv(std::string name, std::string attributes, Dims x, Dims w, Dims y) {
  Case made;
  made.name = std::move(name), made.attributes = std::move(attributes);
  made.x = std::move(x), made.w = std::move(w), made.y = std::move(y);
  return made;
}

Case transposed(std::string name, std::string attributes, Dims x, Dims w, Dims y) {
  Case made = conv("transposed_" + std::move(name), std::move(attributes), std::move(x),
                   std::move(w), std::move(y));
  made.op = "ConvTranspose";
  return made.without_bias();
}

Case pool(std::string op, std::string name, std::string attributes, Dims x, Dims y) {
  Case made = conv(std::move(name), std::move(attributes), std::move(x), {}, std::move(y));
  made.op = std::move(op);
  return made.without_bias();
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string joined;
  for (const int64_t dim : dims) joined += fmt::format("{}{}", joined.empty() ? "" : ", ", dim);
  return "[" + joined + "]";
}

// `batch`: how the first dim of x, y and the summand is written.
std::string graph_text(const Case& wanted, const std::string& type, const std::string& batch) {
  const auto shape = [&](std::vector<int64_t> dims) {
    const std::string rest = dims_text({dims.begin() + 1, dims.end()});
    return fmt::format("{}[{}, {}", type, batch, rest.substr(1));
  };
  std::string text = "graph g {\n  input %x: " + shape(wanted.x) + "\n", inputs = "%x";
  if (!wanted.w.empty()) {
    text += fmt::format("  input %w: {}{}\n", type, dims_text(wanted.w));
    inputs += ", %w";
    if (wanted.bias) text += fmt::format("  input %b: {}[{}]\n", type, wanted.w[0]);
    if (wanted.bias || wanted.summand) inputs += wanted.bias ? ", %b" : ", _";
    if (wanted.summand) {
      text += "  input %z: " + shape(wanted.y) + "\n";
      inputs += ", %z";
    }
  }
  const bool fused = wanted.summand || wanted.relu;
  std::string attributes = wanted.relu ? "activation=\"Relu\"" : "";
  if (!wanted.attributes.empty()) {
    attributes += (attributes.empty() ? "" : ", ") + wanted.attributes;
  }
  return fmt::format("{}  %y: {} = {}({}){}\n  output %y\n}}", text, shape(wanted.y),
                     fused ? "com.microsoft::FusedConv" : wanted.op, inputs,
                     attributes.empty() ? "" : " {" + attributes + "}");
}

std::vector<Case> cases() {
  return {
      conv("stem_7x7", "pads=[3, 3, 3, 3], strides=[2, 2]", {1, 3, 32, 32}, {8, 3, 7, 7},
           {1, 8, 16, 16}),
      conv("3x3", "pads=[1, 1, 1, 1]", {2, 8, 14, 14}, {16, 8, 3, 3}, {2, 16, 14, 14}),
      conv("1x1", "", {1, 16, 10, 10}, {24, 16, 1, 1}, {1, 24, 10, 10}),
      conv("1x1_strided", "strides=[2, 2]", {1, 16, 14, 14}, {32, 16, 1, 1}, {1, 32, 7, 7}),
      conv("no_bias", "pads=[1, 1, 1, 1]", {1, 8, 9, 9}, {8, 8, 3, 3}, {1, 8, 9, 9}).without_bias(),
      conv("relu", "pads=[1, 1, 1, 1]", {1, 8, 9, 9}, {8, 8, 3, 3}, {1, 8, 9, 9}).with_relu(),
      conv("residual", "pads=[1, 1, 1, 1]", {2, 8, 9, 9}, {8, 8, 3, 3}, {2, 8, 9, 9})
          .with_summand()
          .with_relu(),
      conv("depthwise", "group=8, pads=[1, 1, 1, 1]", {1, 8, 12, 12}, {8, 1, 3, 3}, {1, 8, 12, 12}),
      conv("depthwise_5x5_strided", "group=16, pads=[2, 2, 2, 2], strides=[2, 1]", {1, 16, 24, 20},
           {16, 1, 5, 5}, {1, 16, 12, 20}),
      conv("groups", "group=2, pads=[1, 1, 1, 1]", {1, 8, 9, 9}, {12, 4, 3, 3}, {1, 12, 9, 9}),
      conv("dilated", "dilations=[2, 2], pads=[2, 2, 2, 2]", {1, 8, 12, 12}, {8, 8, 3, 3},
           {1, 8, 12, 12}),
      conv("asymmetric_pads", "pads=[0, 1, 2, 1]", {1, 8, 9, 9}, {8, 8, 3, 3}, {1, 8, 9, 9}),
      conv("same_upper", "auto_pad=\"SAME_UPPER\", strides=[2, 2]", {1, 3, 15, 16}, {8, 3, 3, 3},
           {1, 8, 8, 8}),
      conv("odd_sizes", "pads=[1, 0, 0, 1]", {3, 5, 7, 9}, {7, 5, 3, 2}, {3, 7, 6, 9}),
      conv("one_dim", "dilations=[2], pads=[2, 2], strides=[2]", {2, 6, 30}, {10, 6, 3},
           {2, 10, 15}),
      conv("three_dims", "pads=[1, 1, 1, 1, 1, 1]", {1, 4, 6, 7, 8}, {8, 4, 3, 3, 3},
           {1, 8, 6, 7, 8}),
      transposed("4x4", "pads=[1, 1, 1, 1], strides=[2, 2]", {1, 8, 7, 9}, {8, 6, 4, 4},
                 {1, 6, 14, 18}),
      transposed("3x3", "output_padding=[1, 0], pads=[1, 1, 1, 1], strides=[2, 2]", {2, 8, 7, 5},
                 {8, 16, 3, 3}, {2, 16, 14, 9}),
      transposed("apart", "dilations=[2, 1], group=2, pads=[1, 0, 1, 0], strides=[1, 3]",
                 {1, 8, 6, 5}, {8, 3, 3, 2}, {1, 6, 8, 14}),
      transposed("depthwise", "group=8, pads=[1, 1, 1, 1], strides=[2, 2]", {1, 8, 5, 6},
                 {8, 1, 4, 4}, {1, 8, 10, 12}),
      transposed("plain", "", {3, 5, 4, 7}, {5, 7, 3, 2}, {3, 7, 6, 8}),
      transposed("one_dim", "dilations=[2], output_padding=[1], pads=[2, 2], strides=[2]",
                 {2, 6, 11}, {6, 10, 5}, {2, 10, 26}),
      transposed("three_dims", "pads=[1, 1, 1, 1, 1, 1], strides=[2, 1, 2]", {1, 8, 3, 4, 5},
                 {8, 4, 3, 3, 3}, {1, 4, 5, 4, 9}),
      pool("MaxPool", "max_pool", "kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]",
           {1, 8, 16, 16}, {1, 8, 8, 8}),
      pool("MaxPool", "max_pool_ceil", "ceil_mode=1, kernel_shape=[2, 2], strides=[2, 2]",
           {1, 4, 9, 9}, {1, 4, 5, 5}),
      pool("AveragePool", "average_pool", "kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]",
           {1, 8, 16, 16}, {1, 8, 8, 8}),
      pool("AveragePool", "average_pool_of_all",
           "count_include_pad=1, kernel_shape=[3, 2], strides=[2, 1]", {1, 8, 17, 16},
           {1, 8, 8, 15}),
      // A window that is larger than the image takes what is there.
      pool("MaxPool", "max_pool_of_one_row", "kernel_shape=[2, 2], strides=[2, 2]", {1, 8, 1, 8},
           {1, 8, 1, 4}),
      pool("MaxPool", "max_pool_of_one_pixel", "kernel_shape=[3, 2], strides=[3, 2]", {2, 8, 1, 1},
           {2, 8, 1, 1}),
      pool("AveragePool", "average_pool_of_one_row", "kernel_shape=[2, 2], strides=[2, 2]",
           {1, 8, 1, 8}, {1, 8, 1, 4}),
      // ResNet-50 and a text recogniser, at sizes of theirs.
      conv("resnet_stem", "pads=[3, 3, 3, 3], strides=[2, 2]", {1, 3, 112, 112}, {64, 3, 7, 7},
           {1, 64, 56, 56})
          .with_relu()
          .of_real_size(),
      conv("resnet_3x3", "pads=[1, 1, 1, 1]", {2, 64, 56, 56}, {64, 64, 3, 3}, {2, 64, 56, 56})
          .with_summand()
          .with_relu()
          .of_real_size(),
      conv("resnet_expand", "", {2, 512, 7, 7}, {2048, 512, 1, 1}, {2, 2048, 7, 7})
          .with_summand()
          .with_relu()
          .of_real_size(),
      conv("resnet_down", "strides=[2, 2]", {1, 1024, 14, 14}, {2048, 1024, 1, 1}, {1, 2048, 7, 7})
          .of_real_size(),
      conv("ocr_depthwise", "group=120, pads=[2, 2, 2, 2]", {1, 120, 48, 80}, {120, 1, 5, 5},
           {1, 120, 48, 80})
          .of_real_size(),
      transposed("segmentation", "pads=[1, 1, 1, 1], strides=[2, 2]", {1, 64, 32, 32},
                 {64, 32, 4, 4}, {1, 32, 64, 64})
          .of_real_size(),
      conv("ocr_head", "pads=[4, 4, 4, 4]", {1, 24, 60, 80}, {12, 24, 9, 9}, {1, 12, 60, 80})
          .of_real_size(),
  };
}

ReferenceTensor random_tensor(DType dtype, std::vector<int64_t> dims, std::mt19937& random) {
  ReferenceTensor tensor = ReferenceTensor::zeros(dtype, std::move(dims));
  std::normal_distribution<double> normal;
  for (double& value : tensor.reals) value = normal(random);
  return tensor.rounded();
}

std::vector<ReferenceTensor> inputs_of(const Case& wanted, DType dtype) {
  std::mt19937 random(7);
  std::vector<ReferenceTensor> inputs = {random_tensor(dtype, wanted.x, random)};
  if (wanted.w.empty()) return inputs;
  inputs.push_back(random_tensor(dtype, wanted.w, random));
  if (wanted.bias) inputs.push_back(random_tensor(dtype, {wanted.w[0]}, random));
  if (wanted.summand) inputs.push_back(random_tensor(dtype, wanted.y, random));
  return inputs;
}

bool on_stub() { return std::getenv("TENON_DRIVER_LIBRARY") != nullptr; }

class CudnnConvolutionTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* target = std::getenv("TENON_TEST_TARGET");
    if (target == nullptr || std::string(target) != "gpu") GTEST_SKIP() << "cuDNN needs a GPU";
    if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
  }

  // A sum of `taps` products of numbers around 1 is about sqrt(taps) on the way, and each step
  // rounds to 2^-24 of that, or cuts to 2^-23 on tensor cores: together 2^-23 * taps * 0.7, give or
  // take. Eight times that is never met by chance.
  static void judge(const Case& wanted, const std::string& batch, DType dtype) {
    const ir::Graph graph = ir::parse(graph_text(wanted, GetParam(), batch));
    const Settings settings = test_settings();
    const ir::Node& node = graph.node(graph.order().front());
    const Support support = supports(graph, node, settings);
    // What cuDNN has no fast engine for in one graph, passes leave apart.
    if (!support && (wanted.summand || wanted.relu)) GTEST_SKIP() << support.reason;
    ASSERT_TRUE(support) << support.reason;
    const std::vector<ReferenceTensor> inputs = inputs_of(wanted, dtype);
    double taps = 1;
    for (size_t i = 1; i < wanted.w.size(); ++i) taps *= static_cast<double>(wanted.w[i]);
    const auto executable = build_for_test(graph, settings);
    const auto expected = reference::evaluate(graph, inputs);
    for (int run = 0; run < 2; ++run) {
      const std::string wrong = disagreement(kernels::run(*executable, graph, inputs), expected,
                                             [&](size_t, int64_t, double value) {
                                               return std::ldexp(8 * taps + std::abs(value), -23);
                                             });
      EXPECT_EQ(wrong, "") << wanted.name;
    }
  }
};

DType dtype_named(const std::string& name) {
  return name == "f32" ? DType::kF32 : name == "f16" ? DType::kF16 : DType::kBF16;
}

// What GetCapability asks: no GPU is touched, so that any cuDNN can be asked on any machine.
TEST(CudnnSupportTest, ADescribedGpuIsEnough) {
  if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
  Settings settings;
  settings.cudnn = true;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    settings.gpu = device::named_description(arch).target();
    const int major = codegen::arch_spec(arch).compute_major;
    if (!cudnn::plans_without_device(cudnn::library().functions.version, major)) continue;
    for (const Case& wanted : cases()) {
      for (const char* type : {"f32", "f16", "bf16"}) {
        const ir::Graph graph = ir::parse(graph_text(wanted, type, "n"));
        const Support support = supports(graph, graph.node(graph.order().front()), settings);
        EXPECT_TRUE(support) << arch << " " << wanted.name << " " << type << ": " << support.reason;
      }
    }
  }
}

TEST(CudnnSupportTest, WithoutPermissionTheReasonSaysSo) {
  Settings settings;
  settings.gpu = codegen::GpuTarget{};
  const ir::Graph graph = ir::parse(graph_text(cases().front(), "f16", "1"));
  const ir::Node& node = graph.node(graph.order().front());
  EXPECT_EQ(supports(graph, node, settings).reason,
            "cudnn: only cuDNN runs it, and enable_cudnn is 0");
}

// What a tuner is offered, and what it gets.
TEST_P(CudnnConvolutionTest, EveryEngineIsAPlanOfItsOwn) {
  const Case wanted = cases()[1];
  const ir::Graph graph = ir::parse(graph_text(wanted, GetParam(), "2"));
  const ir::Node& node = graph.node(graph.order().front());
  Settings settings = test_settings();
  settings.precision = Precision::kTf32;
  const auto kernels = [&] {
    return select(graph, node, settings).parts.at(0).plan.ranges.at(0).kernels;
  };
  const std::vector<PlannedKernel> told = kernels();
  ASSERT_GT(told.size(), 1U);
  EXPECT_LE(told.size(), 5U);
  const std::vector<ReferenceTensor> inputs = inputs_of(wanted, dtype_named(GetParam()));
  const auto expected = reference::evaluate(graph, inputs);
  for (const PlannedKernel& each : told) {
    settings.tuning.kernels = {{"cudnn", {}, each.config}};
    EXPECT_EQ(kernels().front().config, each.config);
    const std::string wrong = disagreement(
        kernels::run(*build_for_test(graph, settings), graph, inputs), expected,
        [](size_t, int64_t, double value) { return std::ldexp(64 + std::abs(value), -11); });
    EXPECT_EQ(wrong, "") << each.config.text();
  }
}

TEST_P(CudnnConvolutionTest, AgreesWithTheReference) {
  for (const Case& wanted : cases()) {
    if (wanted.large && on_stub()) continue;
    judge(wanted, std::to_string(wanted.x[0]), dtype_named(GetParam()));
  }
}

TEST_P(CudnnConvolutionTest, PlansForABatchThatARunBrings) {
  for (const Case& wanted : cases()) {
    if (!wanted.large) judge(wanted, "n", dtype_named(GetParam()));
  }
}

// The stub computes when it is called, not when a graph is launched.
TEST_P(CudnnConvolutionTest, CudaGraphsHoldTheCalls) {
  if (on_stub()) GTEST_SKIP() << "the stub of cuDNN puts nothing into CUDA graphs";
  for (const Case& wanted : cases()) {
    if (!wanted.large) continue;
    const ir::Graph graph = ir::parse(graph_text(wanted, GetParam(), std::to_string(wanted.x[0])));
    const Settings settings = test_settings();
    if (!supports(graph, graph.node(graph.order().front()), settings)) continue;
    const std::vector<ReferenceTensor> inputs = inputs_of(wanted, dtype_named(GetParam()));
    const auto plain = build_for_test(graph, settings);
    const auto captured =
        build_on_device(graph, settings, device::Device::open(0), {.graphs = true});
    const auto expected = kernels::run(*plain, graph, inputs);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(kernels::run(*captured, graph, inputs)[0].reals, expected[0].reals) << wanted.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudnnConvolutionTest, testing::Values("f32", "f16", "bf16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tenon::kernels
