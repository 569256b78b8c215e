#include "graph_partitioner/ir/verify.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"

namespace tenon::ir {
namespace {

Graph valid() {
  return parse(R"(graph main {
    input %x: f32[2]
    const %c: f32[2] = hex:0000803f0000803f
    %a: f32[2] = Add(%x, %c)
    %b: f32[2] = tenon::Loop(%a) body {
      input %i: f32[2]
      %o: f32[2] = Exp(%i)
      output %o
    }
    output %b
  })");
}

void expect_fault(const Graph& graph, const std::string& part) {
  const Support support = verify(graph);
  EXPECT_FALSE(support.ok);
  EXPECT_NE(support.reason.find(part), std::string::npos) << support.reason;
}

TEST(IrVerify, AcceptsAValidGraph) { EXPECT_TRUE(verify(valid()).ok) << verify(valid()).reason; }

TEST(IrVerify, FindsAValueReadBeforeItIsWritten) {
  Graph graph = valid();
  graph.node(graph.order()[0]).inputs[0] = graph.find("b");
  expect_fault(graph, "before it is written");
}

TEST(IrVerify, FindsAValueWrittenTwice) {
  Graph graph = valid();
  Node again = graph.node(graph.order()[0]);
  graph.add_node(again);
  expect_fault(graph, "written elsewhere");
}

TEST(IrVerify, FindsTwoValuesOfOneName) {
  Graph graph = valid();
  graph.value(graph.find("a")).name = "x";
  expect_fault(graph, "two values are named 'x'");
}

TEST(IrVerify, FindsUnsortedSources) {
  Graph graph = valid();
  graph.node(graph.order()[0]).sources = {2, 1};
  expect_fault(graph, "sorted");
}

TEST(IrVerify, FindsAConstantOfAnotherShape) {
  Graph graph = valid();
  graph.value(graph.find("c")).shape = Shape{3};
  expect_fault(graph, "shape");
}

TEST(IrVerify, FindsABodyThatDoesNotPair) {
  Graph graph = valid();
  graph.node(graph.order()[1]).inputs.push_back(graph.find("x"));
  expect_fault(graph, "its body takes 1 inputs, expected 2");
}

TEST(IrVerify, FindsElementsThatContradictTheShape) {
  Graph graph = valid();
  graph.value(graph.find("a")).elements = std::vector<Dim>{1, 2, 3};
  expect_fault(graph, "3 elements");
}

TEST(IrVerify, FindsAnOutputThatNobodyWrites) {
  Graph graph = valid();
  Value value;
  value.name = "nobody";
  graph.add_output(graph.add_value(value));
  expect_fault(graph, "never written");
}

Graph merged() {
  return parse(R"(graph main {
    input %x: f16[m,8]
    const %w: f16[8,4] = sha256:00 bytes:64
    const %u: f16[8,2] = sha256:01 bytes:32
    %y: f16[m,4], %z: f16[m,2] = tenon::MergedDots(%x, %w, %u) body {
      input %x: f16[m,8]
      input %w: f16[8,4]
      input %u: f16[8,2]
      %y: f16[m,4] = tenon::ScaledDot(%x, %w) {result="f16"}
      %z: f16[m,2] = tenon::ScaledDot(%x, %u) {result="f16"}
      output %y
      output %z
    }
    output %y
    output %z
  })");
}

TEST(IrVerify, AcceptsMergedDots) { EXPECT_TRUE(verify(merged())) << verify(merged()).reason; }

TEST(IrVerify, FindsMergedDotsOfAnotherInput) {
  Graph graph = merged();
  Node& node = graph.node(graph.order()[0]);
  auto body = std::make_shared<Graph>(*node.body);
  body->node(body->order()[1]).inputs[0] = body->inputs()[1];
  node.body = body;
  expect_fault(graph, "from its first input");
}

TEST(IrVerify, FindsAMergedNodeThatIsNoDot) {
  Graph graph = merged();
  Node& node = graph.node(graph.order()[0]);
  auto body = std::make_shared<Graph>(*node.body);
  body->node(body->order()[1]).op = "MatMul";
  node.body = body;
  expect_fault(graph, "expected a tenon::ScaledDot");
}

TEST(IrVerify, FindsAResultThatIsTakenInsideAndReadOutside) {
  Graph graph = parse(R"(graph main {
    input %x: f16[m,8]
    const %w: f16[8,4] = sha256:00 bytes:64
    %u: f16[m,4], %y: f16[m,4] = tenon::MergedDots(%x, %w) body {
      input %x: f16[m,8]
      input %w: f16[8,4]
      %u: f16[m,4] = tenon::ScaledDot(%x, %w) {result="f16"}
      %y: f16[m,4] = tenon::ScaledDot(%x, %w, _, _, _, _, _, _, %u) {result="f16"} body {
        input %s: f16[m,4]
        input %u: f16[m,4]
        %y: f16[m,4] = Mul(%s, %u)
        output %y
      }
      output %u
      output %y
    }
    output %y
  })");
  EXPECT_TRUE(verify(graph)) << verify(graph).reason;
  graph.add_output(graph.find("u"));
  expect_fault(graph, "read outside");
}

}  // namespace
}  // namespace tenon::ir
