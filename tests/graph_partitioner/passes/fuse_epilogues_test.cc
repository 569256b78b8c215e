#include "graph_partitioner/passes/fuse_epilogues.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/decompose.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

using testing::expect_equivalent;
using testing::outline_text;

ir::Graph fused(const ir::Graph& before) {
  ir::Graph after = before;
  decompose(after);
  fuse_epilogues(after);
  expect_equivalent(before, after, {{"m", 3}, {"b", 2}});
  return after;
}

const ir::Node& dot_of(const ir::Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    if (graph.node(id).is(ir::kScaledDot)) return graph.node(id);
  }
  throw std::runtime_error("no dot");
}

TEST(FuseEpilogues, BiasAndGeluAndResidual) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    input %r: f32[m,2]
    const %c: f32[2] = hex:0000803f00000040
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %e: f32[m,2] = Add(%d, %c)
    %g: f32[m,2] = Gelu@20(%e)
    %y: f32[m,2] = Add(%g, %r)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot[Mul Erf Mul Add Mul Add]");
  const ir::ScaledDot dot = ir::ScaledDot::from(dot_of(after));
  EXPECT_EQ(after.value(dot.bias).name, "c");
  ASSERT_EQ(dot.extra.size(), 1u);
  EXPECT_EQ(after.value(dot.extra[0]).name, "r");
  EXPECT_EQ(after.value(dot_of(after).output(0)).name, "y");
}

// The sum of one layer is rounded before the next one adds to it.
TEST(FuseEpilogues, WhatIsComputedForAnOperandAlone) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f16[m,4]
    input %w: f16[4,4]
    input %r: f32[m,4]
    %d: f16[m,4] = tenon::ScaledDot(%x, %w) {result="f16"}
    %e: f32[m,4] = Cast(%d) {to=1}
    %s: f32[m,4] = Add(%e, %r)
    %h: f16[m,4] = Cast(%s) {to=10}
    %i: f32[m,4] = Cast(%h) {to=1}
    %n: f32[m,4] = Softmax@13(%s)
    %b: f16[m,4] = Cast(%n) {to=10}
    %f: f16[m,4] = tenon::ScaledDot(%b, %w) {result="f16"}
    %g: f32[m,4] = Cast(%f) {to=1}
    %y: f32[m,4] = Add(%g, %i)
    output %y
  })"));
  EXPECT_EQ(outline_text(after),
            "ScaledDot[Cast Add] ReduceMax Sub Exp ReduceSum Div Cast "
            "ScaledDot[Cast Cast Cast Add]");
}

// A sum of halves goes on as halves: a norm and the next sum make wider numbers for themselves.
TEST(FuseEpilogues, WiderNumbersAreLeftToTheirReaders) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f16[m,4]
    input %w: f16[4,4]
    input %r: f16[m,4]
    %d: f16[m,4] = tenon::ScaledDot(%x, %w) {result="f16"}
    %e: f32[m,4] = Cast(%d) {to=1}
    %q: f32[m,4] = Cast(%r) {to=1}
    %s: f32[m,4] = Add(%e, %q)
    %h: f16[m,4] = Cast(%s) {to=10}
    %i: f32[m,4] = Cast(%h) {to=1}
    %n: f32[m,4] = Softmax@13(%i)
    %b: f16[m,4] = Cast(%n) {to=10}
    %f: f16[m,4] = tenon::ScaledDot(%b, %w) {result="f16"}
    %g: f32[m,4] = Cast(%f) {to=1}
    %t: f32[m,4] = Add(%g, %i)
    %y: f16[m,4] = Cast(%t) {to=10}
    output %y
  })"));
  EXPECT_EQ(outline_text(after),
            "ScaledDot[Cast Cast Add Cast] Cast ReduceMax Sub Exp ReduceSum Div Cast "
            "ScaledDot[Cast Cast Add Cast]");
  EXPECT_EQ(after.value(dot_of(after).output(0)).name, "h");
}

TEST(FuseEpilogues, WhatOthersReadToo) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    input %r: f32[m,2]
    %e: f32[m,2] = Exp@13(%r)
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %y: f32[m,2] = Add(%d, %e)
    output %y
    output %e
  })"));
  EXPECT_EQ(outline_text(after), "Exp ScaledDot[Add]");
}

TEST(FuseEpilogues, GateTakesTheOtherDotAsOperand) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    input %u: f32[4,2]
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %up: f32[m,2] = tenon::ScaledDot(%x, %u) {result="f32"}
    %g: f32[m,2] = Swish@24(%d)
    %y: f32[m,2] = Mul(%g, %up)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot ScaledDot[Neg Exp Add Reciprocal Mul Mul]");
}

TEST(FuseEpilogues, StopsWhereTheResultIsSeenTwice) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %e: f32[m,2] = Exp(%d)
    output %d
    output %e
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot Exp");
}

TEST(FuseEpilogues, OneValueMayLeaveForManyReaders) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,4]
    %d: f32[m,4] = tenon::ScaledDot(%x, %w) {result="f32"}
    %y: f32[m,4] = Add(%d, %x)
    %s: f32[m,1] = ReduceSum(%y) {axes=[1], keepdims=1}
    output %y
    output %s
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot[Add] ReduceSum");
}

TEST(FuseEpilogues, OperandsThatNeedTheDotStayOutside) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %e: f32[m,2] = Neg(%d)
    %s: f32[m,1] = ReduceSum(%e) {axes=[1], keepdims=1}
    %y: f32[m,2] = Mul(%e, %s)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot[Neg] ReduceSum Mul");
}

TEST(FuseEpilogues, WiderResultsStayOutside) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    input %r: f32[b,m,2]
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %y: f32[b,m,2] = Add(%d, %r)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot Add");
}

TEST(FuseEpilogues, CastGoesIntoTheDot) {
  const ir::Graph after = fused(ir::parse(R"(graph g {
    input %x: f32[m,4]
    input %w: f32[4,2]
    %d: f32[m,2] = tenon::ScaledDot(%x, %w) {result="f32"}
    %y: f16[m,2] = Cast(%d)
    output %y
  })"));
  EXPECT_EQ(outline_text(after), "ScaledDot[Cast]");
  EXPECT_EQ(ir::ScaledDot::from(dot_of(after)).result, DType::kF32);
}

}  // namespace
}  // namespace tenon
