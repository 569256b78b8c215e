#include "graph_partitioner/passes/fuse_loops.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/decompose.h"
#include "graph_partitioner/passes/hoist_movement.h"
#include "graph_partitioner/passes/share_equal_values.h"
#include "graph_partitioner/tiling/index_map.h"
#include "tests/graph_partitioner/equivalence.h"
#include "tests/graph_partitioner/random_primitives.h"

namespace tenon {
namespace {

using testing::expect_equivalent;
using testing::outline_text;
using testing::SymbolSizes;

void expect_legal(const ir::Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    if (!ir::is_loop(node)) continue;
    const tiling::LoopTiling loop = tiling::analyze(*node.body);
    EXPECT_TRUE(loop.support.ok) << loop.support.reason << "\n" << ir::print(graph);
  }
}

ir::Graph fused(const ir::Graph& before) {
  ir::Graph after = before;
  decompose(after);
  hoist_movement(after);
  fuse_loops(after);
  expect_legal(after);
  expect_equivalent(before, after, {{"b", 2}, {"s", 5}});
  return after;
}

TEST(FuseLoops, ExpandedLayerNormIsOneLoop) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s,8]
    input %w: f32[8]
    const %two: f32[] = hex:00000040
    const %eps: f32[] = hex:acc52737
    %m: f32[b,s,1] = ReduceMean(%x) {axes=[2], keepdims=1}
    %d: f32[b,s,8] = Sub(%x, %m)
    %p: f32[b,s,8] = Pow(%d, %two)
    %v: f32[b,s,1] = ReduceMean(%p) {axes=[2], keepdims=1}
    %e: f32[b,s,1] = Add(%v, %eps)
    %r: f32[b,s,1] = Sqrt(%e)
    %n: f32[b,s,8] = Div(%d, %r)
    %y: f32[b,s,8] = Mul(%n, %w)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Loop[ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul]");
}

TEST(FuseLoops, EmbeddingSumAndNormAreOneLoop) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %ids: i64[b,s]
    input %types: i64[b,s]
    input %words: f32[9,8]
    input %kinds: f32[3,8]
    input %places: f32[1,s,8]
    input %w: f32[8]
    input %c: f32[8]
    %a: f32[b,s,8] = Gather(%words, %ids) {axis=0}
    %k: f32[b,s,8] = Gather(%kinds, %types) {axis=0}
    %t: f32[b,s,8] = Add(%a, %k)
    %u: f32[b,s,8] = Add(%t, %places)
    %y: f32[b,s,8] = LayerNormalization@17(%u, %w, %c) {axis=-1}
    output %y
  })"));
  EXPECT_EQ(testing::count_ops(after, ir::kLoop), 1) << ir::print(after);
}

TEST(FuseLoops, MaskArithmeticJoinsItsOneReader) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %mask: i64[b,s]
    input %scores: f32[b,4,s,s]
    const %one: f32[] = hex:0000803f
    const %low: f32[] = hex:00401cc6
    %r: i64[b,1,1,s] = Reshape(%mask)
    %f: f32[b,1,1,s] = Cast(%r)
    %n: f32[b,1,1,s] = Sub(%one, %f)
    %m: f32[b,1,1,s] = Mul(%n, %low)
    %a: f32[b,4,s,s] = Add(%scores, %m)
    %y: f32[b,4,s,s] = Softmax@13(%a) {axis=-1}
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Reshape Loop[Cast Sub Mul Add ReduceMax Sub Exp ReduceSum Div]");
}

TEST(FuseLoops, ExpensiveWorkIsNotRepeated) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[s]
    input %y: f32[b,s]
    %e: f32[s] = Exp(%x)
    %z: f32[b,s] = Mul(%e, %y)
    output %z
  })"));
  EXPECT_EQ(outline_text(after), "Loop[Exp] Loop[Mul]");
}

TEST(FuseLoops, EscapingValuesAreOutputs) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s]
    input %r: f32[b,s]
    %t: f32[b,s] = Add(%x, %r)
    %y: f32[b,s] = Softmax@13(%t) {axis=-1}
    output %y
    output %t
  })"));
  ASSERT_EQ(after.order().size(), 1u) << ir::print(after);
  EXPECT_EQ(after.node(after.order()[0]).outputs.size(), 2u);
}

// Fusing Neg with Add would need Concat's result before it runs.
TEST(FuseLoops, NoCycleThroughAnotherNode) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s]
    %n: f32[b,s] = Neg(%x)
    %c: f32[2*b,s] = Concat(%n, %n) {axis=0}
    %h: f32[b,s] = tenon::Slice(%c) {starts=["b","0"], steps=[1,1]}
    %y: f32[b,s] = Add(%n, %h)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Loop[Neg] Concat Loop[Slice Add]");
}

TEST(FuseLoops, ReductionsOverDifferentAxesAreTwoLoops) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[4,6]
    %a: f32[4,1] = ReduceSum(%x) {axes=[1], keepdims=1}
    %d: f32[4,6] = Div(%x, %a)
    %c: f32[1,6] = ReduceSum(%d) {axes=[0], keepdims=1}
    %y: f32[4,6] = Div(%d, %c)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Loop[ReduceSum Div] Loop[ReduceSum Div]");
}

TEST(FuseLoops, MovementSinksBelowArithmetic) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s,6]
    input %c: f32[6]
    %a: f32[b,s,6] = Add(%x, %c)
    %t: f32[b,6,s] = Transpose(%a) {perm=[0,2,1]}
    %y: f32[b,6,s] = Neg(%t)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Reshape Loop[Transpose Add Neg]");
}

TEST(FuseLoops, ViewsThatCancelDisappear) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s,6]
    %m: f32[b,s,1] = ReduceMean(%x) {axes=[2], keepdims=1}
    %q: f32[b,s] = Reshape(%m)
    %u: f32[b,s,1] = Reshape(%q)
    %y: f32[b,s,6] = Sub(%x, %u)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "Loop[ReduceMean Sub]");
}

TEST(FuseLoops, IndicesStayInMemory) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[b,s,6]
    const %i: i64[] = hex:0000000000000000
    %y: f32[b,6] = Gather(%x, %i) {axis=1}
    output %y
  })"));
  ASSERT_EQ(outline_text(after), "Loop[Gather]");
  EXPECT_EQ(after.node(after.order()[0]).inputs.size(), 2u);
}

TEST(FuseLoops, SourcesGoAlong) {
  ir::Graph graph = ir::parse(R"(graph g {
    input %x: f32[b,s]
    %a: f32[b,s] = Neg(%x) sources=[3]
    %y: f32[b,s] = Softmax@13(%a) {axis=-1} sources=[5]
    output %y
  })");
  decompose(graph);
  fuse_loops(graph);
  ASSERT_EQ(graph.order().size(), 1u);
  EXPECT_EQ(graph.node(graph.order()[0]).sources, (std::vector<int>{3, 5}));
}

TEST(FuseLoops, RandomGraphsStayLegalAndEquivalent) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    testing::RandomPrimitives random(seed);
    const ir::Graph before = random.grow(4 + static_cast<int>(seed % 20));
    ir::Graph after = before;
    share_equal_values(after);
    hoist_movement(after);
    expect_equivalent(before, after, random.sizes(), seed);
    fuse_loops(after);
    expect_legal(after);
    for (const ir::NodeId id : after.order()) {
      const ir::Node& node = after.node(id);
      EXPECT_TRUE(ir::is_loop(node) || node.is("Reshape") || node.is("Concat")) << node.op;
    }
    expect_equivalent(before, after, random.sizes(), seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tenon
