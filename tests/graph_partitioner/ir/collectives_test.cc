#include "graph_partitioner/ir/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/pipeline.h"

namespace tenon::ir {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const NodeId id : graph.order()) ops.push_back(graph.node(id).op);
  return ops;
}

TEST(Collectives, AttributesComeBack) {
  const Collective written{.op = std::string(kReduceScatter),
                           .reduction = "max",
                           .parts = {3, 2},
                           .part = 1,
                           .groups = {0, 2, -1, 1, 3},
                           .ranks = 2};
  Node node;
  written.write_to(node);
  const Collective read = Collective::from(node);
  EXPECT_EQ(read.op, kReduceScatter);
  EXPECT_EQ(read.reduction, "max");
  EXPECT_EQ(read.parts, written.parts);
  EXPECT_EQ(read.part, 1);
  EXPECT_EQ(read.groups, written.groups);
  EXPECT_EQ(read.ranks, 2);
  EXPECT_TRUE(is_collective(node));
}

TEST(Collectives, NumbersThatDoNotFitAreRefused) {
  const Collective good{.op = std::string(kAllGather), .ranks = 4};
  EXPECT_TRUE(check(good));
  const auto refused = [&](const auto& change) {
    Collective bad = good;
    change(bad);
    return check(bad).reason;
  };
  EXPECT_THAT(refused([](Collective& c) { c.ranks = 0; }), HasSubstr("0 ranks"));
  EXPECT_THAT(refused([](Collective& c) { c.parts = {1, 2}; }), HasSubstr("2 parts for 4"));
  EXPECT_THAT(refused([](Collective& c) { c.parts = {1, 2, 3, -4}; }), HasSubstr("below 0"));
  EXPECT_THAT(refused([](Collective& c) {
                c.parts = {1, 2, 3, 4}, c.part = 4;
              }),
              HasSubstr("part 4"));
  EXPECT_THAT(refused([](Collective& c) { c.reduction = "mean"; }), HasSubstr("mean"));
  EXPECT_THAT(refused([](Collective& c) { c.root = 4; }), HasSubstr("root 4"));
  EXPECT_THAT(refused([](Collective& c) { c.groups = {0, 1, -1, 2, 3}; }), HasSubstr("2 ranks"));
  EXPECT_THAT(refused([](Collective& c) { c.groups = {0, 1, 2, 2}; }), HasSubstr("two groups"));
  EXPECT_THAT(refused([](Collective& c) { c.groups = {0, 1, 2, -3}; }), HasSubstr("no rank -3"));
  EXPECT_THAT(refused([](Collective& c) { c.pairs = {0, 1, 2}; }), HasSubstr("no target"));
  EXPECT_THAT(refused([](Collective& c) { c.pairs = {0, 1, 0, 2}; }), HasSubstr("sends twice"));
  EXPECT_THAT(refused([](Collective& c) { c.pairs = {0, 1, 2, 1}; }), HasSubstr("receives twice"));
  EXPECT_THAT(refused([](Collective& c) { c.pairs = {0, 4}; }), HasSubstr("no rank 4"));
}

TEST(Collectives, TheVerifierAsks) {
  EXPECT_FALSE(verify(parse(R"(graph main {
    input %x: f32[2]
    %y: f32[2] = tenon::Broadcast(%x) {ranks=2, root=5}
    output %y
  })")));
}

// Other ranks wait for it.
TEST(Collectives, StayWhereNobodyReadsThem) {
  const Graph fused = fuse(parse(R"(graph main {
    input %x: f32[n,4]
    %unread: f32[n,4] = com.microsoft::AllReduce(%x)
    %y: f32[n,4] = Exp(%x)
    output %y
  })"));
  EXPECT_THAT(ops_of(fused), ::testing::Contains(std::string(kAllReduce)));
}

// The order is part of what ranks agree on.
TEST(Collectives, KeepTheirOrder) {
  const Graph fused = fuse(parse(R"(graph main {
    input %x: f32[n,4]
    input %z: f32[n,4]
    %a: f32[n,4] = com.microsoft::AllReduce(%z)
    %b: f32[n,4] = com.microsoft::AllToAll(%x) {group_size=2}
    %c: f32[n,4] = com.microsoft::AllReduce(%b)
    %y: f32[n,4] = Mul(%c, %a)
    output %y
  })"));
  std::vector<std::string> collectives;
  for (const std::string& op : ops_of(fused)) {
    if (op != kLoop) collectives.push_back(op);
  }
  EXPECT_THAT(collectives, ::testing::ElementsAre(std::string(kAllReduce), std::string(kAllToAll),
                                                  std::string(kAllReduce)));
}

// One loop of Exp and Add would need the second before the first.
TEST(Collectives, NoFusionNeedsAnotherOrder) {
  const Graph fused = fuse(parse(R"(graph main {
    input %x: f32[n,4]
    input %z: f32[n,4]
    %e: f32[n,4] = Exp(%x)
    %a: f32[n,4] = com.microsoft::AllReduce(%e)
    %b: f32[n,4] = com.microsoft::AllToAll(%z) {group_size=2}
    %f: f32[n,4] = Add(%e, %b)
    output %a
    output %f
  })"));
  EXPECT_THAT(ops_of(fused), ::testing::ElementsAre(std::string(kLoop), std::string(kAllReduce),
                                                    std::string(kAllToAll), std::string(kLoop)));
  for (const NodeId id : fused.order()) {
    if (is_collective(fused.node(id))) {
      EXPECT_EQ(fused.node(id).inputs.size(), 1U);
    }
  }
}

TEST(Collectives, OneAtMostGoesBefore) {
  Graph graph = parse(R"(graph main {
    input %x: f32[2]
    %y: f32[2] = tenon::AllReduce(%x) {reduction="sum"}
    %z: f32[2] = tenon::AllReduce(%x) {reduction="max"}
    output %z
  })");
  order_collectives(graph);
  EXPECT_TRUE(verify(graph));
  EXPECT_EQ(graph.node(graph.order()[1]).input(1), graph.find("y"));
  graph.node(graph.order()[1]).inputs[1] = graph.find("x");
  EXPECT_THAT(verify(graph).reason, HasSubstr("the collective before it"));
  forget_order_of_collectives(graph);
  EXPECT_TRUE(verify(graph));
}

}  // namespace
}  // namespace tenon::ir
