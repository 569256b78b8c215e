// Small networks whose channels are stored last inside: what passes make of them, and what they
// compute, against the float64 reference of the network as it was.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/cudnn/library.h"
#include "kernels/device/device.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using reference::ReferenceTensor;
using Dims = std::vector<int64_t>;

DType dtype_named(const std::string& name) {
  return name == "f32" ? DType::kF32 : name == "f16" ? DType::kF16 : DType::kBF16;
}

// Small enough that sums of a few layers stay around 1.
ReferenceTensor random_tensor(DType dtype, Dims dims, unsigned seed, double scale) {
  std::mt19937 random(seed);
  ReferenceTensor tensor = ReferenceTensor::zeros(dtype, std::move(dims));
  std::normal_distribution<double> normal(0, scale);
  for (double& value : tensor.reals) value = normal(random);
  return tensor.rounded();
}

// Text of a graph with one input x of one type, written line by line.
class Network {
 public:
  Network(std::string type, std::string batch, Dims x)
      : type_(std::move(type)), batch_(std::move(batch)), x_(std::move(x)) {
    text_ = fmt::format("graph g {{\n  input %x: {}\n", shape(x_));
  }

  Network& weight(const std::string& name, Dims dims) {
    double terms = 1;
    for (size_t i = 1; i < dims.size(); ++i) terms *= static_cast<double>(dims[i]);
    const ReferenceTensor made =
        random_tensor(dtype_named(type_), dims, ++seed_, 1 / std::sqrt(terms));
    std::string hex, sizes;
    for (const std::byte byte : made.bytes()) hex += fmt::format("{:02x}", static_cast<int>(byte));
    for (const int64_t dim : dims) sizes += fmt::format("{}{}", sizes.empty() ? "" : ",", dim);
    text_ += fmt::format("  const %{}: {}[{}] = hex:{}\n", name, type_, sizes, hex);
    return *this;
  }
  Network& node(const std::string& name, const Dims& dims, const std::string& call) {
    text_ += fmt::format("  %{}: {} = {}\n", name, shape(dims), call);
    last_ = name;
    return *this;
  }

  std::string text() const { return text_ + "  output %" + last_ + "\n}"; }
  ReferenceTensor x() const { return random_tensor(dtype_named(type_), x_, 99, 1); }

 private:
  std::string shape(const Dims& dims) const {
    std::string joined = batch_;
    for (size_t i = 1; i < dims.size(); ++i) joined += fmt::format(",{}", dims[i]);
    return fmt::format("{}[{}]", type_, joined);
  }

  const std::string type_, batch_;
  const Dims x_;
  std::string text_, last_;
  unsigned seed_ = 0;
};

// A stem of three channels, a residual block with another way around it, pooling: ResNet's parts.
Network residual(const std::string& type, const std::string& batch) {
  Network made(type, batch, {2, 3, 19, 17});
  made.weight("w0", {8, 3, 7, 7}).weight("b0", {8});
  made.weight("w1", {12, 8, 1, 1}).weight("b1", {12}).weight("w2", {12, 12, 3, 3});
  made.weight("w3", {12, 8, 1, 1}).weight("b3", {12});
  made.node("c0", {2, 8, 10, 9}, "Conv@11(%x, %w0, %b0) {pads=[3,3,3,3], strides=[2,2]}");
  made.node("r0", {2, 8, 10, 9}, "Relu@14(%c0)");
  made.node("p0", {2, 8, 5, 5},
            "MaxPool@12(%r0) {kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]}");
  made.node("c1", {2, 12, 5, 5}, "Conv@11(%p0, %w1, %b1)")
      .node("r1", {2, 12, 5, 5}, "Relu@14(%c1)");
  made.node("c2", {2, 12, 3, 3}, "Conv@11(%r1, %w2) {pads=[1,1,1,1], strides=[2,2]}");
  made.node("c3", {2, 12, 3, 3}, "Conv@11(%p0, %w3, %b3) {strides=[2,2]}");
  made.node("s", {2, 12, 3, 3}, "Add@14(%c2, %c3)").node("r2", {2, 12, 3, 3}, "Relu@14(%s)");
  return made.node("g", {2, 12, 1, 1}, "GlobalAveragePool@1(%r2)");
}

// A depthwise filter, a gate of each channel's mean, two branches side by side: an OCR backbone's.
Network gated(const std::string& type, const std::string& batch) {
  Network made(type, batch, {1, 8, 11, 6});
  made.weight("w0", {8, 1, 5, 5}).weight("b0", {8}).weight("w1", {4, 8, 1, 1}).weight("b1", {4});
  made.weight("w2", {8, 4, 1, 1}).weight("b2", {8}).weight("w3", {6, 8, 3, 3});
  made.weight("w4", {10, 8, 1, 1}).weight("shift", {16, 1, 1});
  made.node("c0", {1, 8, 11, 6}, "Conv@11(%x, %w0, %b0) {group=8, pads=[2,2,2,2]}");
  made.node("h0", {1, 8, 11, 6}, "HardSwish@14(%c0)");
  made.node("m", {1, 8, 1, 1}, "GlobalAveragePool@1(%h0)");
  made.node("c1", {1, 4, 1, 1}, "Conv@11(%m, %w1, %b1)").node("r1", {1, 4, 1, 1}, "Relu@14(%c1)");
  made.node("c2", {1, 8, 1, 1}, "Conv@11(%r1, %w2, %b2)");
  made.node("g", {1, 8, 1, 1}, "HardSigmoid@6(%c2)").node("e", {1, 8, 11, 6}, "Mul@14(%h0, %g)");
  made.node("a", {1, 6, 11, 6}, "Conv@11(%e, %w3) {pads=[1,1,1,1]}");
  made.node("b", {1, 10, 11, 6}, "Conv@11(%e, %w4)");
  made.node("j", {1, 16, 11, 6}, "Concat@13(%a, %b) {axis=1}");
  made.node("k", {1, 16, 11, 6}, "Add@14(%j, %shift)");
  return made.node("y", {1, 16, 5, 5}, "AveragePool@19(%k) {kernel_shape=[2,2], strides=[2,1]}");
}

// Poolings of every kind behind each other.
Network pooled(const std::string& type, const std::string& batch) {
  Network made(type, batch, {2, 8, 20, 17});
  made.weight("w0", {8, 8, 1, 1});
  made.node("c", {2, 8, 20, 17}, "Conv@11(%x, %w0)");
  made.node("p0", {2, 8, 10, 9},
            "MaxPool@12(%c) {ceil_mode=1, kernel_shape=[3,3], pads=[0,1,1,0], strides=[2,2]}");
  made.node("p1", {2, 8, 10, 9},
            "AveragePool@19(%p0) {kernel_shape=[3,3], pads=[1,1,1,1], strides=[1,1]}");
  made.node("p2", {2, 8, 10, 9},
            "AveragePool@19(%p1) {count_include_pad=1, kernel_shape=[3,3], pads=[1,1,1,1]}");
  made.node("p3", {2, 8, 5, 5},
            "AveragePool@19(%p2) {ceil_mode=1, kernel_shape=[2,2], strides=[2,2]}");
  made.node("p4", {2, 8, 3, 1}, "MaxPool@12(%p3) {dilations=[1,2], kernel_shape=[3,3]}");
  return made.node("y", {2, 8, 1, 1}, "AveragePool@19(%p4) {kernel_shape=[3,1]}");
}

Network solid(const std::string& type, const std::string& batch) {
  Network made(type, batch, {1, 5, 4, 6, 5});
  made.weight("w0", {8, 5, 3, 3, 3}).weight("b0", {8}).weight("w1", {6, 8, 1, 1, 1});
  made.node("c0", {1, 8, 4, 6, 5}, "Conv@11(%x, %w0, %b0) {pads=[1,1,1,1,1,1]}");
  made.node("r0", {1, 8, 4, 6, 5}, "Relu@14(%c0)").node("c1", {1, 6, 4, 6, 5}, "Conv@11(%r0, %w1)");
  return made.node("y", {1, 6, 4, 6, 5}, "Tanh@13(%c1)");
}

ir::Graph fused_for(const ir::Graph& graph, const Settings& settings) {
  return fuse(graph, {}, [&](const ir::Graph& asked, const ir::Node& node) {
    return supports(asked, node, settings);
  });
}

std::map<std::string, int> ops_of(const ir::Graph& graph) {
  std::map<std::string, int> counts;
  for (const ir::NodeId id : graph.order()) ++counts[graph.node(id).op];
  return counts;
}

// Any cuDNN can be asked on any machine.
TEST(CudnnChannelsLastSupportTest, ADescribedGpuIsEnough) {
  if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
  Settings settings;
  settings.cudnn = true;
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    settings.gpu = device::named_description(arch).target();
    for (const std::string type : {"f16", "bf16"}) {
      for (const Network& network : {residual(type, "n"), gated(type, "n"), solid(type, "n")}) {
        const ir::Graph fused = fused_for(ir::parse(network.text()), settings);
        auto ops = ops_of(fused);
        EXPECT_EQ(ops["Conv"] + ops["com.microsoft::FusedConv"], 0) << arch << " " << type << "\n"
                                                                    << ir::print(fused);
      }
    }
  }
}

class CudnnChannelsLastTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* target = std::getenv("TENON_TEST_TARGET");
    if (target == nullptr || std::string(target) != "gpu") GTEST_SKIP() << "cuDNN needs a GPU";
    if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
    settings_ = test_settings();
  }

  // Values are around 1, and each layer rounds them to its type, once more where kernels of ours
  // stand between: a network of five may be off by ten roundings.
  void judge(const Network& network) const {
    const ir::Graph graph = ir::parse(network.text());
    const ir::Graph fused = fused_for(graph, settings_);
    ASSERT_TRUE(runs(fused, settings_)) << runs(fused, settings_).reason;
    EXPECT_EQ(ops_of(fused)["Conv"] + ops_of(fused)["com.microsoft::FusedConv"], 0)
        << ir::print(fused);
    const auto expected = reference::evaluate(graph, {network.x()});
    const auto executable = build_for_test(fused, settings_);
    const double roundoff = GetParam() == "bf16" ? std::ldexp(1, -8) : std::ldexp(1, -11);
    const std::string wrong = disagreement(
        kernels::run(*executable, fused, {network.x()}), expected,
        [&](size_t, int64_t, double value) { return 10 * roundoff * (1 + std::abs(value)); });
    EXPECT_EQ(wrong, "") << ir::print(fused);
  }

  Settings settings_;
};

TEST_P(CudnnChannelsLastTest, NetworksComputeTheSame) {
  for (const std::string batch : {"n", ""}) {
    judge(residual(GetParam(), batch.empty() ? "2" : batch));
    judge(gated(GetParam(), batch.empty() ? "1" : batch));
    judge(solid(GetParam(), batch.empty() ? "1" : batch));
    judge(pooled(GetParam(), batch.empty() ? "2" : batch));
  }
}

// The stub sums in one order, whatever the order in memory.
TEST_P(CudnnChannelsLastTest, BothOrdersGiveTheSameBits) {
  if (std::getenv("TENON_DRIVER_LIBRARY") == nullptr) GTEST_SKIP() << "engines differ";
  const Network network = solid(GetParam(), "n");
  const ir::Graph graph = ir::parse(network.text()), last = fused_for(graph, settings_);
  const auto results = kernels::run(*build_for_test(last, settings_), last, {network.x()});
  settings_.tuning.channels_last = false;
  const ir::Graph first = fused_for(graph, settings_);
  EXPECT_EQ(results[0].reals,
            kernels::run(*build_for_test(first, settings_), first, {network.x()})[0].reals);
}

// One turn in front, with the channels that are filled up; none behind, where pixels are one.
TEST_P(CudnnChannelsLastTest, OnlyEdgesAreTurned) {
  const ir::Graph graph = ir::parse(residual(GetParam(), "n").text());
  const ir::Graph fused = fused_for(graph, settings_);
  auto ops = ops_of(fused);
  EXPECT_EQ(ops["tenon::ChannelsLastConv"], 4);
  EXPECT_EQ(ops["tenon::Loop"], 3) << ir::print(fused);  // the turn, the maxima, the mean
  const ir::Node& turn = fused.node(fused.order().front());
  EXPECT_EQ(text(*fused.value(turn.output(0)).shape), "[n,19,17,8]");
}

TEST_P(CudnnChannelsLastTest, ABenchmarkTurnsItOff) {
  const ir::Graph graph = ir::parse(residual(GetParam(), "n").text());
  settings_.tuning.padded_channels = false;
  ir::Graph fused = fused_for(graph, settings_);
  const ir::Node& turn = fused.node(fused.order().front());
  EXPECT_EQ(text(*fused.value(turn.output(0)).shape), "[n,19,17,3]");
  settings_.tuning.channels_last = false;
  EXPECT_EQ(ops_of(fused_for(graph, settings_))["tenon::ChannelsLastConv"], 0);
}

TEST_P(CudnnChannelsLastTest, Float32StaysAsItIs) {
  const ir::Graph graph = ir::parse(residual("f32", "n").text());
  for (const Precision precision : {Precision::kExact, Precision::kTf32}) {
    settings_.precision = precision;
    EXPECT_EQ(ops_of(fused_for(graph, settings_))["tenon::ChannelsLastConv"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudnnChannelsLastTest, testing::Values("f16", "bf16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tenon::kernels
