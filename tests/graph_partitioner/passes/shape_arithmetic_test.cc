// Graphs compute the same with their shape arithmetic dissolved, whatever the sizes turn out to be.
#include "graph_partitioner/passes/shape_arithmetic.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "graph_partitioner/pipeline.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

using testing::count_ops;

ir::Graph dissolved(const ir::Graph& graph) {
  ir::Graph result = graph;
  for (const char* pass : {"infer_shapes", "fold_constants", "shape_arithmetic"}) {
    result = run_pass(pass, std::move(result));
  }
  return result;
}

void expect_same_for_all_sizes(const ir::Graph& before) {
  const ir::Graph after = dissolved(before);
  for (int64_t batch : {1, 2, 3}) {
    for (int64_t seq : {1, 2, 7}) {
      SCOPED_TRACE(::testing::Message() << "batch " << batch << ", seq " << seq);
      testing::expect_equivalent(before, after, {{"batch", batch}, {"seq", seq}});
    }
  }
}

TEST(ShapeArithmetic, HeadsSplitAndMerged) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,seq,12]
    const %zero: i64[] = hex:0000000000000000
    const %one: i64[] = hex:0100000000000000
    const %axes: i64[1] = hex:0000000000000000
    const %heads: i64[2] = hex:0300000000000000ffffffffffffffff
    const %twelve: i64[1] = hex:0c00000000000000
    %s: i64[*] = Shape@13(%x)
    %b: i64[*] = Gather@13(%s, %zero) {axis=0}
    %n: i64[*] = Gather@13(%s, %one) {axis=0}
    %bu: i64[*] = Unsqueeze@13(%b, %axes)
    %nu: i64[*] = Unsqueeze@13(%n, %axes)
    %split: i64[*] = Concat@13(%bu, %nu, %heads) {axis=0}
    %h: f32[*] = Reshape@13(%x, %split)
    %t: f32[*] = Transpose@13(%h) {perm=[0,2,1,3]}
    %back: f32[*] = Transpose@13(%t) {perm=[0,2,1,3]}
    %merge: i64[*] = Concat@13(%bu, %nu, %twelve) {axis=0}
    %y: f32[*] = Reshape@13(%back, %merge)
    output %y
  })");
  EXPECT_EQ(dissolved(graph).order().size(), 4u);
  expect_same_for_all_sizes(graph);
}

TEST(ShapeArithmetic, DivisionsModuloAndSelects) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,seq,6]
    const %two: i64[1] = hex:0200000000000000
    const %minus: i64[1] = hex:ffffffffffffffff
    const %c0: i64[1] = hex:0000000000000000
    const %c1: i64[1] = hex:0100000000000000
    const %end: i64[1] = hex:ffffffffffffff7f
    %s: i64[*] = Shape@15(%x) {end=2, start=1}
    %half: i64[*] = Div@14(%s, %two)
    %odd: i64[*] = Mod@13(%s, %two)
    %sum: i64[*] = Add@14(%half, %odd)
    %first: f32[*] = Slice@13(%x, %c0, %half, %c1)
    %second: f32[*] = Slice@13(%x, %half, %end, %c1)
    %y: f32[*] = Concat@13(%second, %first) {axis=1}
    %is_minus: bool[*] = Equal@13(%s, %minus)
    %target: i64[*] = Where@9(%is_minus, %c1, %s)
    %full: i64[*] = Concat@13(%c1, %target, %c1) {axis=0}
    %z: f32[*] = Expand@13(%x, %full)
    output %y
    output %z
    output %sum
  })");
  const ir::Graph after = dissolved(graph);
  EXPECT_EQ(count_ops(after, "Shape"), 0);
  EXPECT_EQ(count_ops(after, "Slice"), 0);
  EXPECT_EQ(count_ops(after, "tenon::ShapeValue"), 1);
  expect_same_for_all_sizes(graph);
}

TEST(ShapeArithmetic, APositionTableCutToTheSequence) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,seq,2]
    input %table: f32[1,4,2]
    const %c0: i64[1] = hex:0000000000000000
    const %c1: i64[1] = hex:0100000000000000
    %n: i64[*] = Shape@15(%x) {end=2, start=1}
    %p: f32[*] = Slice@13(%table, %c0, %n, %c1)
    %y: f32[*] = Add@14(%x, %p)
    output %y
  })");
  const ir::Graph after = dissolved(graph);
  for (int64_t seq : {1, 2, 4}) {
    testing::expect_equivalent(graph, after, {{"batch", 2}, {"seq", seq}});
  }
  EXPECT_EQ(text(*after.value(after.outputs()[0]).shape), "[batch,seq,2]");
  // Longer than the table: a requirement refuses the Run, which would read past its end.
  const auto fit = [&](int64_t seq) {
    const auto value = [&](std::string_view symbol) { return symbol == "seq" ? seq : int64_t{2}; };
    return std::ranges::all_of(after.requirements(), [&](const ir::Requirement& asked) {
      return ir::holds(asked.left.evaluate(value), asked.relation, asked.right.evaluate(value));
    });
  };
  EXPECT_TRUE(fit(4));
  EXPECT_FALSE(fit(5));
}

}  // namespace
}  // namespace tenon
