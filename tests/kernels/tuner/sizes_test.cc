// Numbers for open sizes, so that a fusion has the rows that are to be measured.
#include "kernels/tuner/sizes.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"

namespace tenon::kernels {
namespace {

ir::Graph decoder_like() {
  return ir::parse(R"(graph g {
  input %x: f16[batch,seq,32]
  input %past: f16[batch,2,past,16]
  %y: f16[batch,seq,32] = Identity(%x)
  %z: f16[batch,2,past,16] = Identity(%past)
  output %y
  output %z
})");
}

TEST(Sizes, OneSequenceGrowsToTheRows) {
  const ir::Graph graph = decoder_like();
  const Dim rows = Dim::parse("batch*seq");
  const auto sizes = sizes_at(graph, rows, 24);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->of(rows), 24);
  EXPECT_EQ(sizes->of(Dim::parse("batch")), 1);
  EXPECT_EQ(sizes->of(Dim::parse("past")), kOtherSize);
  EXPECT_EQ(sizes_at(graph, rows, 5000)->of(Dim::parse("past")), 5000);
}

TEST(Sizes, RowsThatNoSizeGivesAreTold) {
  EXPECT_FALSE(sizes_at(decoder_like(), Dim::parse("2*seq"), 7));
  EXPECT_FALSE(sizes_at(decoder_like(), Dim(4), 5));
  EXPECT_TRUE(sizes_at(decoder_like(), Dim(4), 4));
}

TEST(Sizes, SizesThatMustBeEqualAre) {
  ir::Graph graph = decoder_like();
  graph.require({Dim::parse("past+seq"), ir::Relation::kEqual, Dim::symbol("total"), "node", {}});
  const auto sizes = sizes_at(graph, Dim::parse("seq"), 3);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->of(Dim::parse("total")), kOtherSize + 3);
}

}  // namespace
}  // namespace tenon::kernels
