#include "graph_partitioner/passes/merge_dots.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

const SupportsFn kAll = [](const ir::Graph&, const ir::Node&) { return Support::yes(); };

// `count` products of one input.
ir::Graph products(int count) {
  std::string text = "graph main {\n input %x: f16[m,8]\n", outputs;
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += " const %w" + n + ": f16[8,4] = sha256:0" + n.substr(0, 1) + " bytes:64\n";
    outputs += " output %y" + n + "\n";
  }
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += " %y" + n + ": f16[m,4] = tenon::ScaledDot(%x, %w" + n +
            ") {result=\"f16\"} sources=[" + n + "]\n";
  }
  return ir::parse(text + outputs + "}");
}

TEST(MergeDots, WhatNobodyRunsStaysApart) {
  ir::Graph graph = products(3);
  const std::string before = print(graph);
  int asked = 0;
  merge_dots(graph, [&](const ir::Graph&, const ir::Node& node) {
    EXPECT_EQ(node.op, ir::kMergedDots);
    ++asked;
    return Support::no("no kernel");
  });
  EXPECT_EQ(print(graph), before);
  EXPECT_EQ(asked, 1);
}

TEST(MergeDots, ClaimsAreMadeWithoutMerging) {
  const ir::Graph fused = fuse(products(3));
  for (const ir::NodeId id : fused.order()) EXPECT_EQ(fused.node(id).op, ir::kScaledDot);
}

TEST(MergeDots, ManyProductsBecomeSeveralNodes) {
  ir::Graph graph = products(10);
  merge_dots(graph, kAll);
  ASSERT_EQ(graph.order().size(), 2u);
  EXPECT_TRUE(ir::verify(graph)) << ir::verify(graph).reason;
  EXPECT_EQ(graph.node(graph.order()[0]).outputs.size(), 8u);
  EXPECT_EQ(graph.node(graph.order()[1]).outputs.size(), 2u);
}

TEST(MergeDots, TheNodeStandsForAllSources) {
  ir::Graph graph = products(3);
  merge_dots(graph, kAll);
  EXPECT_EQ(graph.node(graph.order()[0]).sources, (std::vector<int>{0, 1, 2}));
}

TEST(MergeDots, DotsComeBackInTermsOfTheGraph) {
  ir::Graph apart = products(3);
  ir::Graph graph = apart;
  merge_dots(graph, kAll);
  const ir::MergedDots merged = ir::MergedDots::from(graph.node(graph.order()[0]));
  ASSERT_EQ(merged.dots.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const ir::Node& dot = apart.node(apart.order()[i]);
    EXPECT_EQ(merged.dots[i].inputs, dot.inputs);
    EXPECT_EQ(merged.dots[i].outputs, dot.outputs);
    EXPECT_EQ(merged.dots[i].attributes, dot.attributes);
  }
}

}  // namespace
}  // namespace tenon
