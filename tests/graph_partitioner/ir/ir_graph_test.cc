#include "graph_partitioner/ir/graph.h"

#include <gtest/gtest.h>

#include "base/convert.h"
#include "base/error.h"
#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"

namespace tenon::ir {
namespace {

Graph chain() {
  return parse(R"(graph main {
    input %x: f32[2]
    %a: f32[2] = Relu(%x) sources=[0]
    %b: f32[2] = Neg(%a) sources=[1]
    %c: f32[2] = Add(%a, %b) sources=[2]
    output %c
  })");
}

TEST(TensorFacts, AQuestionIsAnsweredOnceWhoeverLooksAtTheBytes) {
  const TensorPtr tensor = Tensor::of(DType::kF32, {2}, {1, 2});
  Tensor view = *tensor;
  view.dims = {2, 1};
  int searches = 0;
  const auto search = [&] { return int64_t{++searches} + 41; };
  EXPECT_EQ(tensor->facts->ask("infinity", search), 42);
  EXPECT_EQ(view.facts->ask("infinity", search), 42);
  EXPECT_EQ(view.facts->ask("NaN", search), 43);
  EXPECT_EQ(searches, 2);
  EXPECT_EQ(Tensor::of(DType::kF32, {2}, {1, 2})->facts->ask("infinity", search), 44);
}

TEST(IrGraph, NamesStayUnique) {
  Graph graph = chain();
  Value value;
  value.name = "a";
  const ValueId id = graph.add_value(value);
  EXPECT_NE(graph.value(id).name, "a");
  EXPECT_EQ(graph.find(graph.value(id).name), id);
  graph.rename(id, "c");
  EXPECT_NE(graph.value(id).name, "c");
  EXPECT_TRUE(verify(graph).ok) << verify(graph).reason;
}

TEST(IrGraph, WhatOneHoldsOnToStaysWhereItIs) {
  Graph graph = chain();
  const Value& value = graph.value(graph.inputs().front());
  const Node& node = graph.node(graph.order().front());
  for (int i = 0; i < 1000; ++i) {
    Node copy = node;
    copy.outputs = {graph.add_value(value)};
    graph.add_node(std::move(copy));
  }
  EXPECT_EQ(&value, &graph.value(graph.inputs().front()));
  EXPECT_EQ(&node, &graph.node(graph.order().front()));
}

TEST(IrGraph, ConsumersAndUses) {
  const Graph graph = chain();
  const ValueId a = graph.find("a"), b = graph.find("b"), c = graph.find("c");
  EXPECT_EQ(graph.consumers(a).size(), 2u);
  EXPECT_FALSE(graph.has_one_use(a));
  EXPECT_TRUE(graph.has_one_use(b));
  EXPECT_FALSE(graph.has_one_use(c)) << "a graph output has a use of its own";
  EXPECT_EQ(graph.producer(b)->op, "Neg");
  EXPECT_EQ(graph.producer(graph.find("x")), nullptr);
}

TEST(IrGraph, ReplacingAnOutputMovesItsName) {
  Graph graph = chain();
  graph.replace_uses(graph.find("c"), graph.find("a"));
  EXPECT_EQ(graph.remove_dead_nodes(), 2);
  EXPECT_EQ(print(graph),
            "graph main {\n  input %x: f32[2]\n  %c: f32[2] = Relu(%x)\n  output %c\n}\n");
  EXPECT_TRUE(verify(graph).ok);
}

TEST(IrGraph, ReplacingAnOutputByAnInputKeepsTheInputsName) {
  Graph graph = chain();
  graph.replace_uses(graph.find("c"), graph.find("x"));
  EXPECT_EQ(graph.outputs()[0], graph.find("x"));
}

TEST(IrGraph, InsertingKeepsTheOrder) {
  Graph graph = chain();
  Value value;
  value.name = "d";
  Node node;
  node.op = "Abs";
  node.inputs = {graph.find("a")};
  node.outputs = {graph.add_value(value)};
  const ValueId d = node.outputs[0];
  graph.insert_before(graph.value(graph.find("b")).producer, node);
  graph.node(graph.value(graph.find("b")).producer).inputs = {d};
  EXPECT_TRUE(verify(graph).ok) << verify(graph).reason;
  EXPECT_EQ(graph.node(graph.order()[1]).op, "Abs");
}

TEST(IrGraph, RemovingAUsedNodeIsAnError) {
  Graph graph = chain();
  EXPECT_THROW(graph.remove_node(graph.value(graph.find("a")).producer), InternalError);
}

TEST(IrGraph, SortingFindsCycles) {
  Graph graph = chain();
  const NodeId relu = graph.value(graph.find("a")).producer;
  graph.node(relu).inputs = {graph.find("b")};
  EXPECT_FALSE(verify(graph).ok);
  EXPECT_THROW(graph.sort_topologically(), InternalError);
}

TEST(IrGraph, AttributesOfTheWrongTypeNameTheNode) {
  Node node;
  node.op = "Softmax";
  node.name = "here";
  node.attributes["axis"] = 1.5f;
  EXPECT_EQ(node.integer("absent", 7), 7);
  try {
    node.integer("axis", 0);
    FAIL();
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("here"), std::string::npos) << message;
    EXPECT_NE(message.find("axis"), std::string::npos) << message;
  }
}

TEST(IrGraph, TensorsOfNumbersPackNarrowTypes) {
  const TensorPtr tensor = Tensor::of(DType::kU4, {3}, {1, 2, 15});
  ASSERT_EQ(tensor->bytes, 2u);
  EXPECT_EQ(load_integer(DType::kU4, tensor->data, 2), 15);
  EXPECT_THROW(Tensor::of(DType::kF32, {2}, {1}), InternalError);
}

TEST(IrGraph, MergedSourcesAreSortedAndUnique) {
  EXPECT_EQ(merge_sources({1, 4, 7}, {0, 4}), (std::vector<int>{0, 1, 4, 7}));
}

TEST(IrExtract, CutsAsTheRuntimeDoes) {
  const Graph graph = parse(R"(graph main {
    input %x: f32[2]
    input %w: f32[2] = hex:0000803f00000040
    const %k: f32[2] = hex:0000803f0000803f
    %a: f32[2] = Relu(%x) sources=[0]
    %b: f32[2] = Add(%a, %w) sources=[1]
    %c: f32[2] = Mul(%b, %k) sources=[2]
    %d: f32[2] = Add(%b, %c) sources=[3]
    output %d
  })");
  const Graph part = extract(graph, {2, 1});
  EXPECT_TRUE(verify(part).ok) << verify(part).reason;
  EXPECT_EQ(print(part), R"(graph main {
  input %a: f32[2]
  input %w: f32[2] = hex:0000803f00000040
  const %k: f32[2] = hex:0000803f0000803f
  %b: f32[2] = Add(%a, %w)
  %c: f32[2] = Mul(%b, %k)
  output %b
  output %c
}
)");
}

TEST(IrFusions, ScaledDotSurvivesItsNode) {
  ScaledDot dot;
  dot.a = 1;
  dot.b = 2;
  dot.scale_b = {3, 4, 16, true, 8, DType::kF8E4M3FN, DType::kF16, 0.75f};
  dot.alpha_constant = 0.5f;
  dot.b_k_last = true;
  dot.b_type = DType::kF4E2M1;
  dot.b_dims = {64, 128};
  dot.accuracy_level = 4;
  dot.result = DType::kF16;
  dot.extra = {9, 8};
  Node node;
  dot.write_to(node);
  const ScaledDot back = ScaledDot::from(node);
  EXPECT_EQ(back.scale_a, dot.scale_a);
  EXPECT_EQ(back.scale_b, dot.scale_b);
  EXPECT_EQ(back.extra, dot.extra);
  EXPECT_EQ(back.b_dims, dot.b_dims);
  EXPECT_EQ(back.b_type, dot.b_type);
  EXPECT_EQ(back.result, dot.result);
  EXPECT_EQ(back.accuracy_level, 4);
  EXPECT_TRUE(back.b_k_last);
  EXPECT_FALSE(back.a_k_first);
  EXPECT_EQ(back.alpha_constant, 0.5f);
  EXPECT_EQ(back.bias, kNoValue);
}

TEST(IrFusions, PlainDotWritesNoDefaults) {
  ScaledDot dot;
  dot.a = 0;
  dot.b = 1;
  Node node;
  dot.write_to(node);
  EXPECT_TRUE(node.attributes.empty());
  EXPECT_EQ(node.inputs.size(), 2u);
}

TEST(IrFusions, AttentionSurvivesItsNode) {
  Attention attention;
  attention.q = 1;
  attention.k = 2;
  attention.v = 3;
  attention.sinks = 7;
  attention.q_heads = 12;
  attention.kv_heads = 4;
  attention.k_layout = "bhds";
  attention.y_layout = "bs(hd)";
  attention.scale = 0.125f;
  attention.causal = true;
  attention.left_window = 128;
  Node node;
  attention.write_to(node);
  const Attention back = Attention::from(node);
  EXPECT_EQ(back.sinks, 7);
  EXPECT_EQ(back.mask, kNoValue);
  EXPECT_EQ(back.k_layout, "bhds");
  EXPECT_EQ(back.y_layout, "bs(hd)");
  EXPECT_EQ(back.q_layout, "bhsd");
  EXPECT_EQ(back.kv_heads, 4);
  EXPECT_TRUE(back.causal);
  EXPECT_EQ(back.left_window, 128);
  EXPECT_EQ(back.right_window, -1);
  EXPECT_THROW(ScaledDot::from(node), InternalError);
}

TEST(IrFusions, AWindowLongerThanAnySequenceIsNone) {
  Node node;
  Attention{.left_window = int64_t{1} << 30, .right_window = int64_t{1} << 62}.write_to(node);
  const Attention back = Attention::from(node);
  EXPECT_EQ(back.left_window, int64_t{1} << 30);
  EXPECT_EQ(back.right_window, -1);
}

}  // namespace
}  // namespace tenon::ir
