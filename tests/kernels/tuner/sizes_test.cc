// Numbers for open sizes, so that a fusion has the rows that are to be measured.
#include "kernels/tuner/sizes.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::kernels {
namespace {

ir::Graph decoder_like() {
  ir::Graph graph = ir::parse(R"(graph g {
  input %q: f16[batch,2,seq,16]
  input %k: f16[batch,2,seq,16]
  input %past_k: f16[batch,2,past,16]
  input %past_v: f16[batch,2,past,16]
  %y: f16[batch,2,seq,16] = Identity(%q)
  output %y
})");
  ir::Attention attention;
  attention.q = graph.find("q");
  attention.k = attention.v = graph.find("k");
  attention.past_k = graph.find("past_k");
  attention.past_v = graph.find("past_v");
  attention.q_heads = attention.kv_heads = 2;
  ir::Node node;
  node.outputs = {graph.add_value(
      {"z", DType::kF16, graph.value(attention.q).shape, ir::kNoNode, {}, false, {}})};
  attention.write_to(node);
  graph.add_node(std::move(node));
  return graph;
}

TEST(Sizes, OneSequenceGrowsToTheRows) {
  const ir::Graph graph = decoder_like();
  const Dim rows = Dim::parse("batch*seq");
  const auto sizes = sizes_at(graph, rows, 24);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->of(rows), 24);
  EXPECT_EQ(sizes->of(Dim::parse("batch")), 1);
  EXPECT_EQ(sizes->of(Dim::parse("past")), kOpenKeys);
  EXPECT_EQ(sizes_at(graph, rows, 5000)->of(Dim::parse("past")), 5000);
}

TEST(Sizes, ABatchThatIsNotOfTheRowsIsOne) {
  const auto sizes = sizes_at(decoder_like(), Dim::parse("seq"), 8);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->of(Dim::parse("batch")), 1);
  EXPECT_EQ(sizes->of(Dim::parse("past")), kOpenKeys);
}

TEST(Sizes, RowsThatNoSizeGivesAreTold) {
  EXPECT_FALSE(sizes_at(decoder_like(), Dim::parse("2*seq"), 7));
  EXPECT_FALSE(sizes_at(decoder_like(), Dim(4), 5));
  EXPECT_TRUE(sizes_at(decoder_like(), Dim(4), 4));
}

// A range without an end stands for prompts, whatever its first row.
TEST(Sizes, RangesAreMeasuredAtRowsThatTheGraphCanHave) {
  const ir::Graph graph = decoder_like();
  const auto measured = [&](const char* rows, RowRange range) {
    return rows_measured(graph, Dim::parse(rows), range).value_or(-1);
  };
  EXPECT_EQ(measured("batch*seq", {9, 16}), 16);
  EXPECT_EQ(measured("batch*seq", {1025}), kOpenRows);
  EXPECT_EQ(measured("seq", {17}), kOpenRows);
  EXPECT_EQ(measured("seq", {5000}), 5000);
  EXPECT_EQ(measured("8*seq", {1025}), kOpenRows);
  EXPECT_EQ(measured("100*seq", {1025}), 2100);
  EXPECT_EQ(measured("100*seq", {65, 256}), 200);
  EXPECT_EQ(measured("100*seq", {65, 99}), -1);
  EXPECT_EQ(measured("4096*batch", {1025}), 4096);
  EXPECT_EQ(measured("4", {1, 8}), 4);
  EXPECT_EQ(measured("4", {5, 8}), -1);
  for (const auto& [rows, count] : {std::pair{"100*seq", 2100}, {"100*seq", 200}, {"seq", 1}}) {
    EXPECT_TRUE(sizes_at(graph, Dim::parse(rows), count)) << rows;
  }
}

TEST(Sizes, SizesThatMustBeEqualAre) {
  ir::Graph graph = decoder_like();
  graph.require({Dim::parse("past+seq"), ir::Relation::kEqual, Dim::symbol("total"), "node", {}});
  const auto sizes = sizes_at(graph, Dim::parse("seq"), 3);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->of(Dim::parse("total")), kOpenKeys + 3);
}

}  // namespace
}  // namespace tenon::kernels
