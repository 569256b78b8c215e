// Inferred shapes and elements are those that the float64 judge computes.
#include "graph_partitioner/passes/infer_shapes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "graph_partitioner/passes/fold_constants.h"
#include "graph_partitioner/passes/shape_arithmetic.h"
#include "graph_partitioner/pipeline.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

using testing::SymbolSizes;

struct Op {
  const char* inputs;  // lines that declare inputs and constants
  const char* node;    // one node, outputs of unknown rank
};

// i64 constants used below.
constexpr const char* kConstants = R"(
  const %zero: i64[] = hex:0000000000000000
  const %one: i64[] = hex:0100000000000000
  const %c0: i64[1] = hex:0000000000000000
  const %c1: i64[1] = hex:0100000000000000
  const %c2: i64[1] = hex:0200000000000000
  const %last: i64[1] = hex:ffffffffffffffff
  const %minus2: i64[1] = hex:feffffffffffffff
  const %end: i64[1] = hex:ffffffffffffff7f
  const %begin: i64[1] = hex:0000000000000080
  const %keep_rest: i64[2] = hex:0000000000000000ffffffffffffffff
  const %rest_keep: i64[3] = hex:ffffffffffffffff00000000000000000200000000000000
  const %c20: i64[2] = hex:02000000000000000000000000000000
  const %pads: i64[6] = hex:000000000000000001000000000000000200000000000000000000000000000003000000000000000000000000000000
  const %twice: i64[3] = hex:010000000000000002000000000000000300000000000000
  const %parts: i64[2] = hex:01000000000000000300000000000000
)";

constexpr const char* kX = "input %x: f32[b,s,4]";

constexpr Op kOps[] = {
    {kX, "%y: f32[*] = Relu@14(%x)"},
    {"input %x: f32[b,s,4]\n input %z: f32[s,1]", "%y: f32[*] = Add@14(%x, %z)"},
    {"input %x: f32[b,s,4]\n input %z: f32[4]", "%y: f32[*] = Mul@14(%x, %z)"},
    {"input %x: f32[b,1]\n input %z: f32[1,s]\n input %m: bool[]",
     "%y: f32[*] = Where@9(%m, %x, %z)"},
    {kX, "%y: f32[*] = ReduceSum@13(%x, %last)"},
    {kX, "%y: f32[*] = ReduceMean@13(%x) {axes=[0,-1], keepdims=0}"},
    {kX, "%y: f32[*] = ReduceMax@13(%x)"},
    {kX, "%y: i64[*] = ArgMax@13(%x) {axis=1, keepdims=0}"},
    {kX, "%y: f32[*] = Transpose@13(%x)"},
    {kX, "%y: f32[*] = Transpose@13(%x) {perm=[1,2,0]}"},
    {kX, "%y: f32[*] = Reshape@14(%x, %keep_rest)"},
    {kX, "%y: f32[*] = Reshape@14(%x, %rest_keep)"},
    {kX, "%y: f32[*] = Flatten@13(%x) {axis=2}"},
    {"input %x: f32[b,1,4]", "%y: f32[*] = Squeeze@13(%x, %c1)"},
    {kX, "%y: f32[*] = Unsqueeze@13(%x, %c20)"},
    {kX, "%y: f32[*] = Tile@13(%x, %twice)"},
    {"input %x: f32[b,s,4]\n input %z: f32[b,s,3]", "%y: f32[*] = Concat@13(%x, %z) {axis=-1}"},
    {kX, "%y: f32[*] = Slice@13(%x, %c1, %end, %c1)"},
    {kX, "%y: f32[*] = Slice@13(%x, %minus2, %end, %c1)"},
    {kX, "%y: f32[*] = Slice@13(%x, %c0, %last, %c1)"},
    {kX, "%y: f32[*] = Slice@13(%x, %last, %begin, %c1, %last)"},
    {kX, "%y: f32[*] = Slice@13(%x, %minus2, %begin, %c1, %minus2)"},
    {kX, "%y: f32[*] = Slice@13(%x, %c0, %end, %c2, %c2)"},
    {kX, "%y: f32[*], %z: f32[*] = Split@13(%x, %parts) {axis=2}"},
    {"input %x: f32[b,s,4]\n input %i: i64[s,2]", "%y: f32[*] = Gather@13(%x, %i) {axis=2}"},
    {"input %x: f32[b,s,4]", "%y: f32[*] = Gather@13(%x, %one) {axis=2}"},
    {"input %x: f32[4,5]\n input %i: i64[b,5]", "%y: f32[*] = GatherElements@13(%x, %i) {axis=0}"},
    {"input %x: f32[3,3,s]\n input %i: i64[b,2]", "%y: f32[*] = GatherND@13(%x, %i)"},
    {kX, "%y: f32[*] = Pad@13(%x, %pads)"},
    {"input %x: f32[b,8,s,2]", "%y: f32[*] = DepthToSpace@13(%x) {blocksize=2}"},
    {"input %x: f32[b,2,4,s]", "%y: i64[*] = Shape@15(%x) {end=-1, start=1}"},
    {kX, "%y: i64[*] = Size@13(%x)"},
    {"input %x: f32[b,s,4]\n input %w: f32[4,6]", "%y: f32[*] = MatMul@13(%x, %w)"},
    {"input %x: f32[4]\n input %w: f32[b,4,s]", "%y: f32[*] = MatMul@13(%x, %w)"},
    {"input %x: f32[b,1,s,4]\n input %w: f32[3,4,2]", "%y: f32[*] = MatMul@13(%x, %w)"},
    {"input %x: f32[4,b]\n input %w: f32[s,4]",
     "%y: f32[*] = Gemm@13(%x, %w) {transA=1, transB=1}"},
    {"input %x: f32[b,s,4]\n input %g: f32[4]",
     "%y: f32[*], %m: f32[*], %v: f32[*] = LayerNormalization@17(%x, %g) {axis=-1}"},
    {kX, "%y: f32[*] = Softmax@13(%x) {axis=-1}"},
    {"input %x: f32[b,4,s,8]\n input %k: f32[b,2,6,8]\n input %v: f32[b,2,6,5]",
     "%y: f32[*] = Attention@23(%x, %k, %v)"},
    {"input %x: f32[b,s,32]\n input %k: f32[b,6,16]\n input %v: f32[b,6,10]",
     "%y: f32[*] = Attention@23(%x, %k, %v) {kv_num_heads=2, q_num_heads=4}"},
    {kX, "%y: u8[*], %f: f32[*], %z: u8[*] = DynamicQuantizeLinear@11(%x)"},
    {"input %x: i64[b,s]", "%y: f32[*] = OneHot@11(%x, %c2, %v) {axis=1}\n"},
};

ir::Graph graph_of(const Op& op) {
  std::string node = op.node, text = "graph main {\n  " + std::string(op.inputs) + kConstants;
  if (node.find("%v)") != std::string::npos && text.find("%v:") == std::string::npos) {
    text += "  const %v: f32[2] = hex:000000000000803f\n";
  }
  text += "  " + node + "\n";
  // Every output of the node is an output of the graph.
  const std::string outputs = node.substr(0, node.find(" = "));
  for (size_t at = outputs.find('%'); at != std::string::npos; at = outputs.find('%', at + 1)) {
    text += "  output " + outputs.substr(at, outputs.find(':', at) - at) + "\n";
  }
  return ir::parse(text + "}\n");
}

// The judge refuses a result whose shape is not the declared one.
TEST(InferShapes, AgreeWithTheJudgeForEverySize) {
  const SymbolSizes sizes[] = {{{"b", 2}, {"s", 5}}, {{"b", 1}, {"s", 1}}, {{"b", 3}, {"s", 2}}};
  for (const Op& op : kOps) {
    SCOPED_TRACE(op.node);
    const ir::Graph before = graph_of(op);
    ir::Graph inferred = before;
    infer_shapes(inferred);
    for (ir::ValueId output : inferred.outputs()) {
      EXPECT_TRUE(inferred.value(output).shape.has_value()) << inferred.value(output).name;
    }
    for (const SymbolSizes& size : sizes) testing::expect_equivalent(before, inferred, size);
  }
}

TEST(InferShapes, TheJudgeWouldRefuseAWrongShape) {
  ir::Graph graph = graph_of(kOps[0]);
  graph.value(graph.outputs()[0]).shape = Shape{Dim::symbol("s"), Dim::symbol("b"), 4};
  std::mt19937 random(1);
  const auto inputs = testing::random_inputs(graph, {{"b", 2}, {"s", 5}}, random);
  EXPECT_THROW(kernels::reference::evaluate(graph, inputs), InternalError);
}

TEST(InferShapes, NothingThrowsForWhatAModelContains) {
  constexpr const char* kBroken[] = {
      "%y: f32[*] = Transpose@13(%x) {perm=[0,7]}",
      "%y: f32[*] = Transpose@13(%x) {perm=\"text\"}",
      "%y: f32[*] = Reshape@14(%x, %big)",
      "%y: f32[*] = Gather@13(%x, %big) {axis=9}",
      "%y: f32[*] = MatMul@13(%x, %big)",
      "%y: f32[*] = Concat@13(%x, %big) {axis=0}",
      "%y: f32[*] = Slice@13(%x, %big, %big, %big, %big)",
      "%y: f32[*] = ReduceSum@13(%x) {axes=[44]}",
      "%y: f32[*] = Conv@11(%x, %x) {strides=[0]}",
      "%y: f32[*] = Einsum@12(%x) {equation=\"->,,\"}",
      "%y: f32[*] = Split@13(%x)",
      "%y: f32[*] = Expand@13()",
      "%y: f32[*] = Tile@13(%x, %big)",
      "%y: f32[*] = tenon::ScaledDot(%x) {b_type=\"nonsense\"}",
  };
  for (const char* node : kBroken) {
    SCOPED_TRACE(node);
    ir::Graph graph =
        ir::parse(std::string("graph main {\n input %x: f32[b,s]\n"
                              "const %big: i64[2] = hex:ffffffffffffff7fffffffffffffff7f\n") +
                  node + "\n output %y\n}");
    EXPECT_NO_THROW(infer_shapes(graph));
    EXPECT_NO_THROW(fold_constants(graph));
    EXPECT_NO_THROW(shape_arithmetic(graph));
  }
}

// What the graph says of a Run: the size of axis 2 of its output, or nothing where it refuses it.
std::optional<int64_t> size_at_run(const ir::Graph& graph, int64_t size) {
  const auto value = [&](std::string_view symbol) -> int64_t { return symbol == "h" ? size : 2; };
  for (const ir::Requirement& required : graph.requirements()) {
    const int64_t left = required.left.evaluate(value), right = required.right.evaluate(value);
    if (!ir::holds(left, required.relation, right)) return std::nullopt;
  }
  return graph.value(graph.outputs()[0]).shape->at(2).evaluate(value);
}

// As ONNX Runtime computes it: integer division, which truncates.
std::optional<int64_t> pooled(int64_t size, int64_t reach, int64_t stride) {
  const int64_t result = (size - reach) / stride + 1;
  return size > 0 && result >= 0 ? std::optional(result) : std::nullopt;
}

std::optional<int64_t> convolved(int64_t size, int64_t reach, int64_t stride) {
  return size >= reach ? std::optional((size - reach) / stride + 1) : std::nullopt;
}

TEST(InferShapes, TheSmallestImagesHaveTheRuntimesSizes) {
  for (const int64_t kernel : {1, 2, 3, 5, 7}) {
    for (const int64_t stride : {1, 2, 3, 7}) {
      for (const int64_t pads : {0, 1, 2}) {
        if (pads >= 2 * kernel) continue;
        const std::string attributes =
            fmt::format("{{kernel_shape=[{}], pads=[{},{}], strides=[{}]}}", kernel, pads / 2,
                        pads - pads / 2, stride);
        SCOPED_TRACE(attributes);
        ir::Graph pool =
            ir::parse("graph g {\n  input %x: f32[b,c,h]\n  %y: f32[*] = MaxPool@12(%x) " +
                      attributes + "\n  output %y\n}\n");
        ir::Graph conv = ir::parse(fmt::format(
            "graph g {{\n  input %x: f32[b,2,h]\n  input %w: f32[3,2,{}]\n  %y: f32[*] = "
            "Conv@11(%x, %w) {}\n  output %y\n}}\n",
            kernel, attributes));
        infer_shapes(pool);
        infer_shapes(conv);
        for (int64_t size = 0; size < 24; ++size) {
          EXPECT_EQ(size_at_run(pool, size), pooled(size, kernel - pads, stride)) << size;
          EXPECT_EQ(size_at_run(conv, size), convolved(size, kernel - pads, stride)) << size;
        }
      }
    }
  }
}

// Sizes of a convolution's result, as exporters compute them from its input's.
TEST(InferShapes, ComputedSizesAreThoseOfTheConvolution) {
  for (const bool computed_first : {false, true}) {
    const std::string arithmetic = R"(
  %n: i64[*] = Shape@15(%x) {start=2}
  %less: i64[*] = Sub@14(%n, %c1)
  %half: i64[*] = Div@14(%less, %c2)
  %size: i64[*] = Add@14(%half, %c1)
)";
    const std::string convolution = "\n  %c: f32[*] = Conv@11(%x, %w) {pads=[1,1], strides=[2]}\n";
    ir::Graph graph = ir::parse(
        std::string("graph g {") + kConstants + "input %x: f32[b,2,h]\n  input %w: f32[3,2,3]\n" +
        (computed_first ? arithmetic + convolution : convolution + arithmetic) +
        "  %t: i64[*] = Concat@13(%size, %last) {axis=0}\n  %y: f32[*] = Reshape@14(%c, %t)\n"
        "  output %y\n}\n");
    infer_shapes(graph);
    infer_shapes(graph);
    EXPECT_EQ(text(*graph.value(graph.outputs()[0]).shape), "[floordiv(h+1,2),3*b]");
  }
}

// Its kernels would count bytes: the node is left to whoever can run it, empty tensors alone.
TEST(InferShapes, ATensorNearTheEndOf64BitsHasNoShape) {
  for (const char* sizes :
       {"1152921504606846976*m", "4611686018427387904*m", "2147483648*m,2147483648"}) {
    ir::Graph graph = ir::parse(fmt::format(
        "graph g {{\n  input %x: f32[{}]\n  %y: f32[*] = Relu@14(%x)\n  output %y\n}}\n", sizes));
    ShapeInference inference(graph);
    const Support fits = inference.infer(graph.order()[0]);
    EXPECT_NE(fits.reason.find("overflows 64 bits"), fits.reason.npos) << sizes;
    EXPECT_FALSE(graph.value(graph.outputs()[0]).shape) << sizes;
  }
}

}  // namespace
}  // namespace tenon
