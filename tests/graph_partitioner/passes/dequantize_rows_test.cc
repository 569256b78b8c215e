#include "graph_partitioner/passes/dequantize_rows.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"

namespace tenon {
namespace {

// Takes one product of rows of these types, which need no scale.
SupportsFn kernels_of(std::vector<DType> rows) {
  return [rows = std::move(rows)](const ir::Graph& graph, const ir::Node& node) {
    const ir::MergedDots merged = ir::MergedDots::from(node);
    const ir::ScaledDot dot = ir::ScaledDot::from(merged.dots.at(0));
    const bool takes = dot.scale_a.scale == ir::kNoValue && !dot.a_k_first &&
                       std::ranges::find(rows, graph.value(dot.a).dtype) != rows.end();
    return takes ? Support::yes() : Support::no("other rows");
  };
}

const SupportsFn kHalves = kernels_of({DType::kF16, DType::kBF16});
const SupportsFn kAny = [](const ir::Graph&, const ir::Node&) { return Support::yes(); };
const SupportsFn kNone = [](const ir::Graph&, const ir::Node&) { return Support::no("a host"); };

// What becomes of the nodes between inputs and outputs.
std::string nodes_of(const ir::Graph& graph) {
  std::string nodes, line;
  for (const char letter : print(graph)) {
    line += letter;
    if (letter != '\n') continue;
    const bool is_node = line.starts_with("  %");
    nodes += is_node ? line.substr(2) : "";
    line.clear();
  }
  return nodes;
}

std::string dequantized(const std::string& text, const SupportsFn& supports = kHalves) {
  ir::Graph graph = ir::parse(text);
  dequantize_rows(graph, supports);
  EXPECT_TRUE(ir::verify(graph)) << ir::verify(graph).reason;
  return nodes_of(graph);
}

std::string type_of_rows(const std::string& text, const SupportsFn& supports = kHalves) {
  ir::Graph graph = ir::parse(text);
  dequantize_rows(graph, supports);
  EXPECT_TRUE(ir::verify(graph)) << ir::verify(graph).reason;
  return std::string(name(graph.value(graph.node(graph.order().back()).input(0)).dtype));
}

// A weight [64,32] of FP8 times what `nodes` make of `inputs`.
std::string product(const std::string& inputs, const std::string& nodes) {
  return "graph main {\n" + inputs +
         "  const %w: f8e4m3fn[64,32] = sha256:00 bytes:2048\n"
         "  const %sw: f32[] = hex:0000003f\n" +
         nodes + "  output %y\n}\n";
}

const std::string kFp8 = product(
    "  input %x: f8e4m3fn[m,64]\n  const %s: f16[] = hex:0034\n",
    "  %y: f16[m,32] = tenon::ScaledDot(%x, %w, %s, _, %sw) {per_channel_a=0, per_channel_b=0, "
    "result=\"f16\"} name=\"dot\" sources=[3]\n");

TEST(DequantizeRows, OneScaleMultipliesTheResult) {
  EXPECT_EQ(dequantized(kFp8),
            "%y.5: f16[m,64] = Cast(%x) name=\"dot\"\n"
            "%y: f16[m,32] = tenon::ScaledDot(%y.5, %w, _, _, %sw) {alpha=0.25, per_channel_b=0, "
            "result=\"f16\"} name=\"dot\"\n");
}

TEST(DequantizeRows, ScalesOfBlocksMultiplyRowsThatHoldTheProducts) {
  const auto blocks = [](const char* codes, const char* scales, int block, const char* type) {
    return product(std::string("  input %x: ") + codes + "[m,64]\n  input %s: " + scales + "[m," +
                       std::to_string(64 / block) + "]\n",
                   "  %y: " + std::string(type) +
                       "[m,32] = tenon::ScaledDot(%x, %w, %s, _, %sw) {block_a=" +
                       std::to_string(block) + ", per_channel_b=0, result=\"" + type + "\"}\n");
  };
  EXPECT_EQ(type_of_rows(blocks("f8e4m3fn", "f8e8m0", 32, "f16")), "bf16");
  EXPECT_EQ(type_of_rows(blocks("f4e2m1", "f8e8m0", 32, "f32")), "bf16");
  EXPECT_EQ(type_of_rows(blocks("f4e2m1", "f8e4m3fn", 16, "f32")), "f16");
  EXPECT_EQ(type_of_rows(blocks("f4e2m1", "f8e4m3fn", 16, "bf16")), "bf16");
  // 4 bits times 11: the model's own DequantizeLinear rounds to f16 as well.
  EXPECT_EQ(type_of_rows(blocks("f8e4m3fn", "f16", 32, "f16")), "f16");
  // In a model of f32 nothing of 16 bits is exact.
  const std::string wide = blocks("f8e4m3fn", "f32", 32, "f32");
  EXPECT_EQ(dequantized(wide), nodes_of(ir::parse(wide)));
  EXPECT_EQ(type_of_rows(wide, kernels_of({DType::kF32})), "f32");
}

// What quantises blocks at Run splits the rows likewise: both become one loop.
TEST(DequantizeRows, BlocksAreAnAxis) {
  const std::string text = product(
      "  input %x: f4e2m1[m,64]\n  input %s: f8e4m3fn[m,4]\n",
      "  %y: f16[m,32] = tenon::ScaledDot(%x, %w, %s, _, %sw) {block_a=16, per_channel_b=0, "
      "result=\"f16\"}\n");
  EXPECT_EQ(dequantized(text),
            "%y.5: f8e4m3fn[m,4,1] = Reshape(%s)\n"
            "%y.6: f32[m,4,1] = Cast(%y.5)\n"
            "%y.7: f4e2m1[m,4,16] = Reshape(%x)\n"
            "%y.8: f32[m,4,16] = Cast(%y.7)\n"
            "%y.9: f32[m,4,16] = Mul(%y.8, %y.6)\n"
            "%y.10: f16[m,4,16] = Cast(%y.9)\n"
            "%y.11: f16[m,64] = Reshape(%y.10)\n"
            "%y: f16[m,32] = tenon::ScaledDot(%y.11, %w, _, _, %sw) {per_channel_b=0, "
            "result=\"f16\"}\n");
}

TEST(DequantizeRows, ScalesThatARunBringsAreNoFactorOfTheResult) {
  const std::string text = product(
      "  input %x: f8e4m3fn[m,64]\n  input %s: f16[]\n",
      "  %y: f16[m,32] = tenon::ScaledDot(%x, %w, %s, _, %sw) {per_channel_a=0, per_channel_b=0, "
      "result=\"f16\"}\n");
  EXPECT_EQ(dequantized(text),
            "%y.5: f16[m,64] = DequantizeLinear(%x, %s) {axis=0}\n"
            "%y: f16[m,32] = tenon::ScaledDot(%y.5, %w, _, _, %sw) {per_channel_b=0, "
            "result=\"f16\"}\n");
}

TEST(DequantizeRows, AScaleFarFromOneStaysWithItsRows) {
  for (const char* scale : {"0000800c", "0000007f", "0000807f"}) {  // 2^-102, 2^127, infinity
    std::string text = kFp8;
    text.replace(text.find("f16[] = hex:0034"), 16, std::string("f32[] = hex:") + scale);
    EXPECT_NE(dequantized(text).find("DequantizeLinear"), std::string::npos) << scale;
  }
}

TEST(DequantizeRows, TransposedRowsAreTurned) {
  const std::string text = product(
      "  input %x: f8e4m3fn[64,m]\n  const %s: f16[] = hex:0034\n",
      "  %y: f16[m,32] = tenon::ScaledDot(%x, %w, %s, _, %sw) {a_k_first=1, per_channel_a=0, "
      "per_channel_b=0, result=\"f16\"}\n");
  EXPECT_EQ(dequantized(text),
            "%y.5: f16[64,m] = Cast(%x)\n"
            "%y.6: f16[m,64] = Transpose(%y.5) {perm=[1,0]}\n"
            "%y: f16[m,32] = tenon::ScaledDot(%y.6, %w, _, _, %sw) {alpha=0.25, per_channel_b=0, "
            "result=\"f16\"}\n");
}

const std::string kBytes = product(
    "  input %x: u8[m,64]\n  const %s: f32[] = hex:0000803e\n  const %z: u8[] = hex:77\n",
    "  %x.1: f32[m,64] = DequantizeLinear@21(%x, %s, %z) sources=[1]\n"
    "  %y: f32[m,32] = tenon::ScaledDot(%x.1, %w, _, _, %sw) {per_channel_b=0, result=\"f32\"} "
    "sources=[2]\n");

TEST(DequantizeRows, IntegersLessTheirZeroPointInModelsOfF32) {
  EXPECT_EQ(dequantized(kBytes),
            "%y.7: f16[m,64] = Cast(%x)\n"
            "%y.8: f16[] = Cast(%z)\n"
            "%y.9: f16[m,64] = Sub(%y.7, %y.8)\n"
            "%y: f32[m,32] = tenon::ScaledDot(%y.9, %w, _, _, %sw) {alpha=0.25, per_channel_b=0, "
            "result=\"f32\"}\n");
}

// ONNX Runtime makes a Gemm of a product and a bias.
TEST(DequantizeRows, RowsThatAreFlattenedForTheirProduct) {
  const std::string text =
      product("  input %x: f8e4m3fn[b,s,64]\n  const %s: f32[] = hex:0000803e\n",
              "  %x.1: f32[b,s,64] = DequantizeLinear@21(%x, %s)\n"
              "  %x.2: f32[b*s,64] = Reshape@19(%x.1)\n"
              "  %y: f32[b*s,32] = tenon::ScaledDot(%x.2, %w, _, _, %sw) {per_channel_b=0, "
              "result=\"f32\"}\n");
  EXPECT_EQ(dequantized(text),
            "%y.7: f16[b,s,64] = Cast(%x)\n"
            "%y.8: f16[b*s,64] = Reshape(%y.7)\n"
            "%y: f32[b*s,32] = tenon::ScaledDot(%y.8, %w, _, _, %sw) {alpha=0.25, "
            "per_channel_b=0, result=\"f32\"}\n");
}

TEST(DequantizeRows, AGlobalScaleBehindAViewMultipliesTheResult) {
  const auto text = [](const std::string& global) {
    return product("  input %x: f4e2m1[b,s,64]\n  input %e: f8e4m3fn[b,s,4]\n" + global,
                   "  %s: f32[b,s,4] = DequantizeLinear@21(%e, %g)\n"
                   "  %x.1: f32[b,s,64] = DequantizeLinear@21(%x, %s) {axis=2, block_size=16}\n"
                   "  %x.2: f32[b*s,64] = Reshape@19(%x.1)\n"
                   "  %y: f32[b*s,32] = tenon::ScaledDot(%x.2, %w, _, _, %sw) {per_channel_b=0, "
                   "result=\"f32\"}\n");
  };
  const std::string constant = dequantized(text("  const %g: f32[] = hex:0000803e\n"));
  EXPECT_NE(constant.find("alpha=0.25"), std::string::npos) << constant;
  const std::string at_run = dequantized(text("  input %g: f32[]\n"));
  EXPECT_NE(at_run.find("%w, _, _, %sw, _, %g)"), std::string::npos) << at_run;
}

TEST(DequantizeRows, WhatDissolvesIsHandedOn) {
  ir::Graph graph = ir::parse(kBytes);
  dequantize_rows(graph, kHalves);
  EXPECT_EQ(graph.node(graph.order().back()).sources, (std::vector<int>{1, 2}));
}

TEST(DequantizeRows, WhereNoKernelGainsNothingChanges) {
  for (const std::string& text : {kFp8, kBytes}) {
    EXPECT_EQ(dequantized(text, kNone), nodes_of(ir::parse(text)));
  }
}

TEST(DequantizeRows, KernelsThatMultiplyCodesGetThem) {
  EXPECT_EQ(dequantized(kFp8, kAny), nodes_of(ir::parse(kFp8)));
}

}  // namespace
}  // namespace tenon
