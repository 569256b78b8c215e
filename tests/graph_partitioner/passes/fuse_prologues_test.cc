#include "graph_partitioner/passes/fuse_prologues.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

const SupportsFn kAll = [](const ir::Graph&, const ir::Node&) { return Support::yes(); };

// A norm, and what `readers` make of it.
ir::Graph norm(const std::string& readers) {
  ir::Graph graph = ir::parse(R"(graph main {
    input %x: f16[m,8]
    const %gamma: f16[8] = sha256:00 bytes:16
    const %w: f16[8,4] = sha256:01 bytes:64
    const %u: f16[8,4] = sha256:02 bytes:64
    %n: f16[m,8] = RMSNormalization@23(%x, %gamma) sources=[0]
)" + readers + "}");
  graph = run_pass("decompose", std::move(graph));
  return run_pass("fuse_loops", std::move(graph));
}

constexpr const char* kOneProduct = R"(
    %y: f16[m,4] = tenon::ScaledDot(%n, %w) {result="f16"} name="head" sources=[1]
    output %y
)";

void expect_untouched(ir::Graph graph, const SupportsFn& supports) {
  const std::string before = print(graph);
  fuse_prologues(graph, supports);
  EXPECT_EQ(print(graph), before);
}

TEST(FusePrologues, OneProductBecomesANodeWithItsNorm) {
  ir::Graph graph = norm(kOneProduct);
  fuse_prologues(graph, kAll);
  ASSERT_EQ(graph.order().size(), 1u);
  EXPECT_TRUE(ir::verify(graph)) << ir::verify(graph).reason;
  const ir::Node& node = graph.node(graph.order()[0]);
  EXPECT_EQ(node.name, "head");
  EXPECT_EQ(node.sources, (std::vector<int>{0, 1}));
  const ir::MergedDots merged = ir::MergedDots::from(node);
  ASSERT_TRUE(merged.prologue);
  ASSERT_EQ(merged.dots.size(), 1u);
  EXPECT_EQ(merged.dots[0].input(0), merged.prologue->output(0));
  EXPECT_EQ(merged.prologue->input(0), graph.inputs()[0]);
}

TEST(FusePrologues, ComesBackFromItsText) {
  ir::Graph graph = norm(kOneProduct);
  fuse_prologues(graph, kAll);
  const ir::Graph again = ir::parse(print(graph));
  EXPECT_TRUE(ir::verify(again)) << ir::verify(again).reason;
  EXPECT_EQ(print(again), print(graph));
}

TEST(FusePrologues, WhatNobodyRunsStaysApart) {
  int asked = 0;
  expect_untouched(norm(kOneProduct), [&](const ir::Graph&, const ir::Node& node) {
    EXPECT_EQ(node.op, ir::kMergedDots);
    ++asked;
    return Support::no("no kernel");
  });
  EXPECT_EQ(asked, 1);
}

TEST(FusePrologues, RowsThatOthersReadStay) {
  expect_untouched(norm(std::string(kOneProduct) + " output %n\n"), kAll);
  expect_untouched(norm(R"(
    %y: f16[m,4] = tenon::ScaledDot(%n, %w) {result="f16"}
    %z: f16[m,4] = tenon::ScaledDot(%n, %u) {result="f16"}
    output %y
    output %z
)"),
                   kAll);
}

TEST(FusePrologues, ResidualsThatAProductAddsStay) {
  expect_untouched(norm(R"(
    %y: f16[m,8] = tenon::ScaledDot(%n, %w, _, _, _, _, _, _, %n) {result="f16"} body {
      input %s: f16[m,8]
      input %r: f16[m,8]
      %t: f16[m,8] = Add@14(%s, %r)
      output %t
    }
    output %y
)"),
                   kAll);
}

}  // namespace
}  // namespace tenon
