#include "graph_partitioner/passes/partition_cost.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

std::string zeros(size_t bytes) { return std::string(2 * bytes, '0'); }

// y = x * w of weights that the model holds.
ir::Graph product(const std::string& type, const std::string& rows, int64_t k, int64_t n) {
  const int64_t bytes = k * n * (type == "f16" ? 2 : 4);
  return ir::parse(
      fmt::format("graph main {{\n input %x: {0}[{1},{2}]\n const %w: {0}[{2},{3}] = hex:{4}\n "
                  "%y: {0}[{1},{3}] = MatMul@13(%x, %w) sources=[0]\n output %y\n}}",
                  type, rows, k, n, zeros(bytes)));
}

HostGain gain_of(ir::Graph graph) {
  const ir::Graph fused = fuse(std::move(graph));
  for (const ir::NodeId id : fused.order()) {
    if (fused.node(id).is(ir::kScaledDot))
      return product_gains_on_host(fused, fused.node(id), decodes(fused));
  }
  ADD_FAILURE() << "no product in\n" << ir::print(fused);
  return {Support::yes()};
}

bool gains(const std::string& type, const std::string& rows, int64_t k, int64_t n) {
  return gain_of(product(type, rows, k, n)).support.ok;
}

TEST(PartitionCost, Float32WeightsThatTheModelHoldsAreKept) {
  for (const std::string rows : {"1", "7", "128", "batch"}) {
    EXPECT_TRUE(gains("f32", rows, 16, 16)) << rows;
    EXPECT_TRUE(gains("f32", rows, 768, 768)) << rows;
  }
}

TEST(PartitionCost, Float16GainsWhereWeightsOutgrowTheCache) {
  EXPECT_FALSE(gains("f16", "64", 64, 64));
  EXPECT_FALSE(gains("f16", "128", 768, 768));
  EXPECT_TRUE(gains("f16", "128", 1024, 1024));
  EXPECT_TRUE(gains("f16", "batch", 1024, 1024));
  EXPECT_FALSE(gains("f16", "1", 1024, 1024));
  const HostGain left = gain_of(product("f16", "1", 1024, 1024));
  EXPECT_NE(left.support.reason.find("one row by 1048576 plain weights of float16"),
            std::string::npos)
      << left.support.reason;
}

Support gain_of_partition(const ir::Graph& cut, bool on_host) {
  return is_gainful(cut, fuse(cut), on_host);
}

TEST(PartitionCost, Float16RowsOfADecoderAreFew) {
  ir::Graph graph = ir::parse(R"(graph main {
  input %x: f16[1,s,1024]
  input %q: f16[1,4,s,16]
  input %pk: f16[1,4,p,16]
  const %w: f16[1024,1024] = hex:)" +
                              zeros(2 << 20) + R"(
  %m: f16[1,s,1024] = MatMul@13(%x, %w) sources=[0]
  %y: f16[1,4,s,16], %nk: f16[1,4,p+s,16], %nv: f16[1,4,p+s,16] = Attention@23(%q, %q, %q, _, %pk, %pk) sources=[1]
  output %m
  output %y
})");
  const ir::Graph fused = fuse(graph);
  EXPECT_TRUE(decodes(fused));
  EXPECT_FALSE(gain_of(graph).support.ok);
  EXPECT_FALSE(decodes(fuse(product("f16", "s", 1024, 1024))));
  EXPECT_FALSE(gain_of_partition(ir::extract(graph, {1}), true).ok) << "nor is its attention ours";
}

TEST(PartitionCost, APlainProductAloneIsNoGainOnTheHost) {
  const ir::Graph graph = product("f32", "32", 64, 64);
  const Support on_host = gain_of_partition(graph, true);
  ASSERT_FALSE(on_host.ok);
  EXPECT_NE(on_host.reason.find("with them are 1 arithmetic ops in all (4 pay off)"),
            std::string::npos)
      << on_host.reason;
  EXPECT_TRUE(gain_of_partition(graph, false).ok) << "on a GPU";
  EXPECT_TRUE(gain_of_partition(product("f16", "32", 1024, 1024), true).ok);
}

// As many products with a Relu each.
ir::Graph layers(int count) {
  std::string text = "graph main {\n input %x0: f32[4,16]\n";
  for (int i = 0; i < count; ++i) {
    text += fmt::format(" const %w{}: f32[16,16] = hex:{}\n", i, zeros(4 * 16 * 16));
  }
  for (int i = 0; i < count; ++i) {
    text += fmt::format(
        " %m{0}: f32[4,16] = MatMul@13(%x{0}, %w{0}) sources=[{1}]\n"
        " %x{2}: f32[4,16] = Relu@14(%m{0}) sources=[{3}]\n",
        i, 2 * i, i + 1, 2 * i + 1);
  }
  return ir::parse(text + fmt::format(" output %x{}\n}}", count));
}

TEST(PartitionCost, SmallProductsGainByWhatIsAroundThem) {
  EXPECT_FALSE(gain_of_partition(layers(1), true).ok);
  EXPECT_TRUE(gain_of_partition(layers(2), true).ok);
}

// softmax(q kT) v and nothing else.
ir::Graph attention(const std::string& type, const std::string& queries) {
  return ir::parse(fmt::format(R"(graph main {{
  input %q: {0}[1,4,{1},16]
  input %k: {0}[1,4,16,64]
  input %v: {0}[1,4,64,16]
  %s: {0}[1,4,{1},64] = MatMul@13(%q, %k) sources=[0]
  %p: {0}[1,4,{1},64] = Softmax@13(%s) {{axis=-1}} sources=[1]
  %y: {0}[1,4,{1},16] = MatMul@13(%p, %v) sources=[2]
  output %y
}})",
                               type, queries));
}

TEST(PartitionCost, AnAttentionOfFloatsAloneIsNoGainOnTheHost) {
  EXPECT_FALSE(gain_of_partition(attention("f32", "64"), true).ok);
  EXPECT_FALSE(gain_of_partition(attention("f32", "seq"), true).ok);
  EXPECT_TRUE(gain_of_partition(attention("f32", "64"), false).ok) << "on a GPU";
}

TEST(PartitionCost, AnAttentionOfFloat16GainsWithEnoughQueries) {
  EXPECT_FALSE(gain_of_partition(attention("f16", "1"), true).ok);
  EXPECT_FALSE(gain_of_partition(attention("f16", "31"), true).ok);
  EXPECT_TRUE(gain_of_partition(attention("f16", "32"), true).ok);
  EXPECT_TRUE(gain_of_partition(attention("f16", "seq"), true).ok);
}

}  // namespace
}  // namespace tenon
