#include "graph_partitioner/passes/stock_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "graph_partitioner/ir/text.h"

namespace tenon {
namespace {

// Scales and zero points, two tensors of codes, and `nodes`.
ir::Graph parse(const std::string& nodes) {
  return ir::parse(R"(graph main {
  input %p: u8[2,8,4,4]
  input %q: u8[2,8,4,4]
  const %w: i8[8,8,1,1] = hex:)" +
                   std::string(2 * 64, '0') + R"(
  const %b: i32[8] = hex:)" +
                   std::string(2 * 4 * 8, '0') + R"(
  const %s: f32[] = hex:0000003f
  const %z: u8[] = hex:80
  const %wz: i8[] = hex:00
)" + nodes + "\n}");
}

const std::string kTwoOperands =
    "%a: f32[2,8,4,4] = DequantizeLinear@13(%p, %s, %z) sources=[0]\n"
    "%c: f32[2,8,4,4] = DequantizeLinear@13(%q, %s, %z) sources=[1]\n";

// Sources of the nodes of each group, sorted.
std::vector<std::vector<int>> sources_of(const ir::Graph& graph) {
  std::vector<std::vector<int>> result;
  for (const IntegerGroup& group : integer_groups(graph)) {
    std::vector<int>& sources = result.emplace_back();
    for (const ir::NodeId id : group.nodes) sources.push_back(graph.node(id).sources[0]);
    std::sort(sources.begin(), sources.end());
  }
  return result;
}

using Groups = std::vector<std::vector<int>>;

TEST(StockKernels, AConvolutionGoesWithAllThatQuantisesForIt) {
  const ir::Graph graph = parse(R"(
  %a: f32[2,8,4,4] = DequantizeLinear@13(%p, %s, %z) sources=[0]
  %f: f32[8,8,1,1] = DequantizeLinear@13(%w, %s, %wz) sources=[1]
  %g: f32[8] = DequantizeLinear@13(%b, %s) sources=[2]
  %y: f32[2,8,4,4] = Conv@11(%a, %f, %g) sources=[3]
  %r: f32[2,8,4,4] = Relu@14(%y) sources=[4]
  %o: u8[2,8,4,4] = QuantizeLinear@13(%r, %s, %z) sources=[5]
  output %o)");
  const std::vector<IntegerGroup> groups = integer_groups(graph);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(sources_of(graph), (Groups{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(graph.node(groups[0].nodes[0]).op, "Conv");
  EXPECT_NE(groups[0].reason.find("DequantizeLinear, Conv and QuantizeLinear as one QLinearConv"),
            std::string::npos)
      << groups[0].reason;
}

TEST(StockKernels, ASumNeedsIntegersOnEverySide) {
  EXPECT_EQ(sources_of(parse(kTwoOperands + R"(
  %y: f32[2,8,4,4] = Add@14(%a, %c) sources=[2]
  %o: u8[2,8,4,4] = QuantizeLinear@13(%y, %s, %z) sources=[3]
  output %o)")),
            (Groups{{0, 1, 2, 3}}));
  EXPECT_TRUE(sources_of(parse(kTwoOperands + R"(
  %y: f32[2,8,4,4] = Add@14(%a, %s) sources=[2]
  %o: u8[2,8,4,4] = QuantizeLinear@13(%y, %s, %z) sources=[3]
  output %o)"))
                  .empty());
  EXPECT_TRUE(sources_of(parse(kTwoOperands + R"(
  %y: f32[2,8,4,4] = Add@14(%a, %c) sources=[2]
  output %y)"))
                  .empty());
}

TEST(StockKernels, AProductMayLeaveFloats) {
  const std::string product = kTwoOperands + "%y: f32[2,8,4,4] = MatMul@13(%a, %c) sources=[2]\n";
  EXPECT_EQ(sources_of(parse(product + "output %y")), (Groups{{0, 1, 2}}));
  EXPECT_EQ(sources_of(parse(product + "%r: f32[2,8,4,4] = Neg@13(%y) sources=[3]\noutput %r")),
            (Groups{{0, 1, 2}}));
}

TEST(StockKernels, ScalesOfFloat16MakeNoGroup) {
  EXPECT_TRUE(sources_of(parse(R"(
  const %h: f16[] = hex:0038
  %a: f16[2,8,4,4] = DequantizeLinear@19(%p, %h, %z) sources=[0]
  %c: f16[2,8,4,4] = DequantizeLinear@19(%q, %h, %z) sources=[1]
  %y: f16[2,8,4,4] = MatMul@13(%a, %c) sources=[2]
  output %y)"))
                  .empty());
}

// Weights alone are no integers to multiply by: that product is of floats in stock kernels, too.
TEST(StockKernels, AWeightAloneMakesNoGroup) {
  EXPECT_TRUE(sources_of(parse(R"(
  input %x: f32[2,8,4,8]
  %f: f32[8,8,1,1] = DequantizeLinear@13(%w, %s, %wz) sources=[0]
  %y: f32[8,8,4,4] = MatMul@13(%x, %f) sources=[1]
  output %y)"))
                  .empty());
}

TEST(StockKernels, AViewOfIntegersNeedsOneOfThem) {
  EXPECT_EQ(sources_of(parse(kTwoOperands + R"(
  const %t: i64[2] = hex:02000000000000008000000000000000
  %y: f32[2,128] = Reshape@14(%a, %t) sources=[2]
  %o: u8[2,128] = QuantizeLinear@13(%y, %s, %z) sources=[3]
  output %o
  output %c)")),
            (Groups{{0, 2, 3}}));
}

TEST(StockKernels, ADynamicProductGoesWithItsScalesAndBias) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,8]
  const %w: i8[8,4] = hex:)" + std::string(2 * 32, '0') +
                                    R"(
  const %s: f32[] = hex:0000003f
  const %z: i8[] = hex:00
  const %b: f32[4] = hex:)" + std::string(2 * 16, '0') +
                                    R"(
  %q: u8[n,8], %qs: f32[], %qz: u8[] = DynamicQuantizeLinear@11(%x) sources=[0]
  %i: i32[n,4] = MatMulInteger@10(%q, %w, %qz, %z) sources=[1]
  %f: f32[n,4] = Cast@13(%i) {to=1} sources=[2]
  %m: f32[] = Mul@14(%qs, %s) sources=[3]
  %y: f32[n,4] = Mul@14(%f, %m) sources=[4]
  %o: f32[n,4] = Add@14(%y, %b) sources=[5]
  %r: f32[n,4] = Relu@14(%o) sources=[6]
  output %r
})");
  EXPECT_EQ(sources_of(graph), (Groups{{0, 1, 2, 3, 4, 5}}));
}

TEST(StockKernels, ADynamicConvolutionGoesWithItsScalesToo) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[1,8,h,h]
  const %w: i8[8,8,1,1] = hex:)" + std::string(2 * 64, '0') +
                                    R"(
  const %s: f32[] = hex:0000003f
  const %z: i8[] = hex:00
  %q: u8[1,8,h,h], %qs: f32[], %qz: u8[] = DynamicQuantizeLinear@11(%x) sources=[0]
  %i: i32[1,8,h,h] = ConvInteger@10(%q, %w, %qz, %z) sources=[1]
  %f: f32[1,8,h,h] = Cast@13(%i) {to=1} sources=[2]
  %m: f32[] = Mul@14(%qs, %s) sources=[3]
  %y: f32[1,8,h,h] = Mul@14(%f, %m) sources=[4]
  output %y
})");
  EXPECT_EQ(sources_of(graph), (Groups{{0, 1, 2, 3, 4}}));
}

TEST(StockKernels, AQuantiserServesOthersOnceAllItServesAreLeft) {
  const ir::Graph graph = parse(kTwoOperands + R"(
  %y: f32[2,8,4,4] = Mystery@1(%a, %c) sources=[2]
  %n: f32[2,8,4,4] = Neg@13(%a) sources=[3]
  %o: u8[2,8,4,4] = QuantizeLinear@13(%y, %s, %z) sources=[4]
  output %o
  output %n)");
  const auto is_left = [&](ir::NodeId id) { return graph.node(id).is("Mystery"); };
  const auto served = [&](size_t place) {
    return served_by_others(graph, graph.order()[place], is_left);
  };
  EXPECT_EQ(served(0), ir::kNoNode) << "Neg is claimed";
  EXPECT_EQ(served(1), graph.order()[2]);
  EXPECT_EQ(served(3), ir::kNoNode) << "Neg quantises nothing";
  EXPECT_EQ(served(4), graph.order()[2]);
}

bool lacks(const std::string& text) {
  const ir::Graph graph = ir::parse("graph main {\n" + text + "\n}");
  return lacks_stock_kernel(graph, graph.node(graph.order().back()));
}

TEST(StockKernels, SomeFormsHaveNone) {
  EXPECT_TRUE(lacks("input %x: bf16[n]\n%y: bf16[n] = Neg@13(%x) sources=[0]\noutput %y"));
  EXPECT_FALSE(lacks("input %x: bf16[n]\n%y: f32[n] = Cast@13(%x) {to=1} sources=[0]\noutput %y"));
  EXPECT_FALSE(lacks("input %x: f32[n]\n%y: f32[n] = Neg@13(%x) sources=[0]\noutput %y"));
}

// The CPU provider has a kernel of the op, and it refuses norms of q and k when it runs.
TEST(StockKernels, NormsInsideAGroupQueryAttentionAreOurs) {
  const auto attention = [](const std::string& norms) {
    return fmt::format(R"(input %x: f32[1,s,8]
  input %p: f32[1,1,p,4]
  input %l: i32[1]
  input %t: i32[]
  const %n: f32[4] = hex:{0}
  %y: f32[1,s,8], %k: f32[1,1,t,4], %v: f32[1,1,t,4] = com.microsoft::GroupQueryAttention@1(%x, %x, %x, %p, %p, %l, %t{1}) {{num_heads=2, kv_num_heads=1}} sources=[0]
  output %y)",
                       std::string(32, '0'), norms);
  };
  EXPECT_TRUE(lacks(attention(", _, _, _, _, _, _, _, %n, %n")));
  EXPECT_FALSE(lacks(attention("")));
}

}  // namespace
}  // namespace tenon
