#include "graph_partitioner/ir/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/hash.h"
#include "graph_partitioner/ir/verify.h"
#include "tests/graph_partitioner/random_graph.h"

namespace tenon::ir {
namespace {

TEST(IrText, RandomGraphsPrintAndParseBack) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Graph graph = testing::random_graph(random, 20);
    ASSERT_TRUE(verify(graph).ok) << verify(graph).reason;
    PrintOptions options;
    options.sources = true;
    const std::string text = print(graph, options);
    Graph parsed;
    ASSERT_NO_THROW(parsed = parse(text)) << text;
    ASSERT_EQ(print(parsed, options), text);
    ASSERT_TRUE(verify(parsed).ok) << verify(parsed).reason;
  }
}

TEST(IrText, BodiesElementsAndDefaultsParseBack) {
  const std::string text = R"(graph "two words" {
  input %x: f32[batch,floordiv(seq+1,16)]
  input %w: f32[1] = hex:0000803f
  const %c: u4[3] = hex:210f
  %s: i64[2] elements(batch,4*batch+1) = Shape@13(%x)
  %y: f32[*], _ = tenon::Loop(%x, _) {axes=[0,1], dims=["batch"], empty=[], eps=1e-05, none=floats[], one=1.0, value=f16[] hex:003c} name="a \"b\"" body {
    input %a: f32[batch]
    input %b: f32[]
    %r: f32[batch] = Exp(%a)
    output %r
    output %b
  }
  %"odd name": bool[] = Not(%c)
  require equal(4*batch+1,floordiv(seq+1,16)) name="a \"b\""
  require divides(2,min(batch,seq))
  output %y
  output %s
}
)";
  const Graph graph = parse(text);
  EXPECT_EQ(print(graph), text);
  EXPECT_TRUE(graph.value(graph.find("w")).overridable);
  EXPECT_TRUE(graph.value(graph.find("c")).is_constant());
  EXPECT_FALSE(graph.value(graph.find("y")).shape.has_value());
  ASSERT_EQ(graph.requirements().size(), 2u);
  EXPECT_EQ(graph.requirements()[0].node, "a \"b\"");
}

TEST(IrText, SizesMayHaveAnyName) {
  const std::string text = R"(graph main {
  input %x: f32['min(8, n)','it\'s','\\',']','(','a:1']
  %y: i64[1] elements('f(x, (y'*2+'),') = Size(%x)
  output %y
}
)";
  const Graph graph = parse(text);
  const Shape& shape = *graph.value(graph.inputs()[0]).shape;
  ASSERT_EQ(shape.size(), 6u);
  EXPECT_EQ(shape[0], Dim::symbol("min(8, n)"));
  EXPECT_EQ(shape[1], Dim::symbol("it's"));
  EXPECT_EQ(shape[2], Dim::symbol("\\"));
  EXPECT_EQ(shape[4], Dim::symbol("("));
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  for (const char* cut : {"graph main {\n input %x: f32['", "graph main {\n input %x: f32['a\\"}) {
    EXPECT_THROW(parse(cut), UserError);
  }
}

TEST(IrText, LongConstantsPrintAsDigests) {
  Graph graph;
  graph.name = "main";
  const std::vector<double> values(300, 1.0);
  const ValueId w = graph.add_constant("w", Tensor::of(DType::kF32, {300}, values));
  graph.add_output(w);
  const std::string text = print(graph);
  EXPECT_NE(text.find("sha256:"), std::string::npos) << text;
  EXPECT_NE(text.find("bytes:1200"), std::string::npos) << text;
  const Graph parsed = parse(text);
  EXPECT_EQ(print(parsed), text) << "the digest stands for the bytes that were left out";
  EXPECT_EQ(parsed.value(parsed.find("w")).constant->bytes, 1200u);
}

struct Mistake {
  const char* text;
  const char* expected;  // part of the message
};

class IrTextMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(IrTextMistakes, SayWhereAndWhat) {
  try {
    parse(GetParam().text);
    FAIL() << "parsed";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().expected), std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, IrTextMistakes,
    ::testing::Values(
        Mistake{"", "line 1, column 1: expected 'graph'"},
        Mistake{"graph g {\n  input %x: f32[2]\n  %y: f32[2] = Relu(%z)\n}", "line 3"},
        Mistake{"graph g {\n input %x: f33[2]\n}", "'f33' is none"},
        Mistake{"graph g {\n input %x: f32[2]\n input %x: f32[2]\n}", "'x' is taken"},
        Mistake{"graph g {\n const %x: f32[2] = hex:00\n}", "8 bytes"},
        Mistake{"graph g {\n const %x: f32[2] = hex:0\n}", "even number"},
        Mistake{"graph g {\n const %x: f32[n] = hex:00000000\n}", "fixed dims"},
        Mistake{"graph g {\n input %x: f32[2\n", "']'"},
        Mistake{"graph g {\n input %x: f32[2]\n %y: f32[] = Op(%x) {a=[1,2.0]}\n}", "one kind"},
        Mistake{"graph g {\n input %x: f32[(]\n}", "expected"},
        Mistake{"graph g {\n require near(1,2)\n}", "'near' is none"},
        Mistake{"graph g {\n require equal(1)\n}", "two sizes"},
        Mistake{"graph g {\n} more", "the end"}));

TEST(IrText, ConstantsThatWereLeftOutAreFoundByTheirDigests) {
  const std::vector<std::byte> bytes(1024, std::byte{7});
  Graph graph;
  graph.add_output(graph.add_constant("w", Tensor::copy(DType::kF32, {256}, bytes)));
  const std::string text = print(graph);
  const Graph found = parse_with_constants(text, [&](std::string_view digest, size_t count) {
    EXPECT_EQ(digest, hex(sha256(bytes)));
    return std::span(bytes).first(count);
  });
  const Value& value = found.value(found.find("w"));
  EXPECT_EQ(value.constant->data, bytes.data());
  EXPECT_EQ(value.constant->stands_for, "");
  EXPECT_EQ(print(found), text);
  const auto another_size = [&](std::string_view, size_t) { return std::span(bytes).first(4); };
  EXPECT_THROW((void)parse_with_constants(text, another_size), UserError);
}

TEST(IrText, CutTextsNeverCrash) {
  std::mt19937 random(7);
  const std::string text = print(testing::random_graph(random, 12));
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THROW(parse(text.substr(0, length)), UserError) << length;
  }
}

// Weights are digested once for all the graphs that have them.
TEST(IrText, DigestsAreKept) {
  Graph graph;
  graph.name = "weights";
  graph.add_output(
      graph.add_constant("w", Tensor::of(DType::kF32, {128}, std::vector<double>(128, 1))));
  Digests digests;
  const std::string text = print(graph, {.digests = &digests});
  EXPECT_EQ(text, print(graph));
  ASSERT_EQ(digests.size(), 1u);
  digests.begin()->second = "remembered";
  EXPECT_NE(print(graph, {.digests = &digests}).find("sha256:remembered"), std::string::npos);
}

}  // namespace
}  // namespace tenon::ir
