#include "graph_partitioner/passes/select_rows.h"

#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

ir::Graph decoder_end(const std::string& selection) {
  return ir::parse(R"(graph end {
  input %x: f32[b,s,4]
  input %r: f32[b,s,4]
  input %lengths: i64[b,1]
  const %d: f32[4,4] = hex:0000803f00000040000040400000803f000080bf0000803f000000400000803f000000400000803f000080bf000040400000803f000000400000803f000080bf
  const %w: f32[4,2] = hex:0000803f0000004000004040000080bf0000803f000000400000803f00004040
  const %g: f32[4] = hex:0000803f00000040000040400000803f
  const %epsilon: f32[] = hex:acc52737
  const %last: i64[] = hex:ffffffffffffffff
  %m: f32[b,s,4] = tenon::ScaledDot(%x, %d) {result="f32"}
  %h: f32[b,s,4] = Add(%m, %r)
  %squares: f32[b,s,4] = Mul(%h, %h)
  %mean: f32[b,s,1] = ReduceMean(%squares) {axes=[2], keepdims=1}
  %safe: f32[b,s,1] = Add(%mean, %epsilon)
  %root: f32[b,s,1] = Sqrt(%safe)
  %unit: f32[b,s,4] = Div(%h, %root)
  %n: f32[b,s,4] = Mul(%unit, %g)
  %l: f32[b,s,2] = tenon::ScaledDot(%n, %w) {result="f32"}
)" + selection + "  output %y\n}\n");
}

void expect_moved(const std::string& selection) {
  const ir::Graph before = decoder_end(selection);
  ir::Graph after = before;
  select_rows(after);
  testing::expect_equivalent(before, after, {{"b", 3}, {"s", 3}});
  // Picked from h: the norm and the last product have the picked rows alone.
  const std::string outline = testing::outline_text(after);
  const std::string op = before.node(before.order().back()).op.substr(0, 6) == "tenon:"
                             ? "Slice"
                             : before.node(before.order().back()).op;
  EXPECT_EQ(outline, "ScaledDot Add " + op + " Mul ReduceMean Add Sqrt Div Mul ScaledDot");
}

TEST(SelectRows, SliceOfTheLastRow) {
  expect_moved(
      "  %y: f32[b,1,2] = tenon::Slice(%l) {starts=[\"0\",\"s-1\",\"0\"], steps=[1,1,1]}\n");
}

TEST(SelectRows, GatherOfTheLastRow) {
  expect_moved("  %y: f32[b,2] = Gather(%l, %last) {axis=1}\n");
}

TEST(SelectRows, GatherOfOneRowEach) {
  expect_moved("  %y: f32[b,2] = GatherND(%l, %lengths) {batch_dims=1}\n");
}

TEST(SelectRows, StaysWhereSomebodyReadsTheRest) {
  ir::Graph graph = decoder_end(
      "  %y: f32[b,2] = Gather(%l, %last) {axis=1}\n  %z: f32[b,s,2] = Neg(%l)\n  output %z\n");
  const std::string before = ir::print(graph);
  select_rows(graph);
  EXPECT_EQ(ir::print(graph), before);
}

TEST(SelectRows, StaysWhereColumnsAreCut) {
  ir::Graph graph = decoder_end(
      "  %y: f32[b,s,1] = tenon::Slice(%l) {starts=[\"0\",\"0\",\"1\"], steps=[1,1,1]}\n");
  const std::string before = ir::print(graph);
  select_rows(graph);
  EXPECT_EQ(ir::print(graph), before);
}

}  // namespace
}  // namespace tenon
