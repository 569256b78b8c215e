// Block-scaled dots through cuDNN: scales that a Run brings are put into tiles, those of weights
// are packed. On the stubs, since the real ones need Blackwell.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

#include "graph_partitioner/ir/text.h"
#include "kernels/cudnn/library.h"
#include "kernels/device/device.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

struct Dot {
  std::string type = "f8e4m3fn", scale_type = "f8e8m0", result = "f32";
  int64_t n = 24, k = 160, block = 32;
  bool k_last = true;        // b is [N, K]
  std::string options = "";  // "alpha=0.5, "
};

std::string random_hex(int64_t bytes, unsigned least, unsigned most, unsigned seed) {
  std::mt19937 random(seed);
  std::string text = "hex:";
  for (int64_t i = 0; i < bytes; ++i) {
    text += fmt::format("{:02x}", least + random() % (most - least + 1));
  }
  return text;
}

// Codes below 0x70 are finite in every type; scales around 1 are 2^-3 to 2^3.
std::string graph_text(const Dot& dot) {
  const bool is_fp4 = dot.type == "f4e2m1";
  const int64_t blocks = dot.k / dot.block;
  const auto matrix = [&](int64_t columns) {
    return dot.k_last ? fmt::format("[{},{}]", dot.n, columns)
                      : fmt::format("[{},{}]", columns, dot.n);
  };
  const unsigned one = dot.scale_type == "f8e8m0" ? 127 : 0x38;
  std::string text = "graph dot {\n";
  text += fmt::format("  input %a: {}[m,{}]\n", dot.type, dot.k);
  text += fmt::format("  input %sa: {}[m,{}]\n", dot.scale_type, blocks);
  text += fmt::format("  const %b: {}{} = {}\n", dot.type, matrix(dot.k),
                      random_hex(dot.n * dot.k / (is_fp4 ? 2 : 1), 0, 0x6f, 1));
  text += fmt::format("  const %sb: {}{} = {}\n", dot.scale_type, matrix(blocks),
                      random_hex(dot.n * blocks, one - 3, one + 3, 2));
  text += fmt::format("  %y: {}[m,{}] = tenon::ScaledDot(%a, %b, %sa, _, %sb) ", dot.result, dot.n);
  text += fmt::format("{{{}{}block_a={}, block_b={}, result=\"{}\"}}\n  output %y\n}}", dot.options,
                      dot.k_last ? "b_k_last=1, " : "", dot.block, dot.block, dot.result);
  return text;
}

bool on_stub() { return std::getenv("TENON_DRIVER_LIBRARY") != nullptr; }

Settings blackwell() {
  Settings settings;
  settings.cudnn = true;
  settings.gpu = device::named_description("sm_100a").target();
  settings.tuning.candidate = "cudnn_block_scaled_dot";
  return settings;
}

std::string verdict(const Dot& dot, const Settings& settings) {
  const ir::Graph graph = ir::parse(graph_text(dot));
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  for (const auto& [name, support] : choice.verdicts) {
    if (name == "cudnn_block_scaled_dot") return support ? "yes" : support.reason;
  }
  return "not asked";
}

std::vector<ReferenceTensor> inputs_of(const Dot& dot, int64_t rows) {
  const DType type = *parse_dtype(dot.type), scale_type = *parse_dtype(dot.scale_type);
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  ReferenceTensor a = ReferenceTensor::zeros(type, {rows, dot.k});
  for (double& value : a.reals) value = 2 * normal(random);
  ReferenceTensor scales = ReferenceTensor::zeros(scale_type, {rows, dot.k / dot.block});
  for (double& value : scales.reals) value = std::ldexp(1.0, static_cast<int>(random() % 7) - 3);
  return {a.rounded(), scales.rounded()};
}

TEST(CudnnBlockScaledDotTest, AgreesWithTheReference) {
  if (!on_stub()) GTEST_SKIP() << "the stubs alone stand for Blackwell here";
  if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
  Settings settings = test_settings();
  settings.gpu->arch = "sm_100a";
  settings.tuning.candidate = "cudnn_block_scaled_dot";
  for (const Dot& dot :
       {Dot{}, Dot{.k_last = false}, Dot{.options = "alpha=0.25, "}, Dot{.type = "f4e2m1"},
        Dot{.type = "f4e2m1", .result = "bf16", .k_last = false}}) {
    SCOPED_TRACE(graph_text(dot).substr(0, 100) + dot.options);
    ASSERT_EQ(verdict(dot, settings), "yes");
    const ir::Graph graph = ir::parse(graph_text(dot));
    const auto executable = build_for_test(graph, settings);
    for (const int64_t rows : {1, 33, 130}) {
      const auto inputs = inputs_of(dot, rows);
      EXPECT_EQ(
          disagreement(kernels::run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                       [](size_t, int64_t, double value) { return std::abs(value) * 1e-6; }),
          "")
          << rows;
    }
  }
}

// Ours multiply such codes three bf16 terms at a time and without a ring.
TEST(CudnnBlockScaledDotTest, ItStandsBeforeOurs) {
  const int version = cudnn::library().functions.version;
  if (version < 91900) GTEST_SKIP() << "Blackwell is not asked about";
  if (const Support& found = cudnn::library().support; !found) GTEST_SKIP() << found.reason;
  Settings settings = blackwell();
  settings.tuning.candidate.clear();
  const std::string answer = verdict({}, settings);
  if (answer.find("libcuda.so.1") != std::string::npos) GTEST_SKIP() << answer;
  EXPECT_EQ(answer, "yes");
  const ir::Graph graph = ir::parse(graph_text({}));
  EXPECT_EQ(select(graph, graph.node(graph.order().front()), settings).chosen(),
            "cudnn_block_scaled_dot");
}

TEST(CudnnBlockScaledDotTest, WhatItIsNotAskedHasAReason) {
  Settings settings = blackwell();
  EXPECT_EQ(verdict({.type = "f4e2m1", .scale_type = "f8e4m3fn", .block = 16}, settings),
            "scales that a Run brings may be negative, which its products ignore");
  EXPECT_EQ(verdict({.options = "zero_offset_b=1, "}, settings), "cuDNN takes no zero points");
  settings.gpu = device::named_description("sm_90a").target();
  EXPECT_EQ(verdict({}, settings), "block-scaled dots of cuDNN need sm_100 or newer");
  settings.cudnn = false;
  EXPECT_EQ(verdict({}, settings), "enable_cudnn is 0");
}

}  // namespace
}  // namespace tenon::kernels
