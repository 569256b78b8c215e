#include "graph_partitioner/passes/decompose.h"

#include <gtest/gtest.h>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/fuse_loops.h"
#include "graph_partitioner/passes/hoist_movement.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

using testing::expect_equivalent;
using testing::SymbolSizes;

// One composite op in a graph: its node line, and how many loops it may end as (views aside).
struct Case {
  const char* name;
  const char* graph;
  int loops = 1;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Decompose : public ::testing::TestWithParam<Case> {};

TEST_P(Decompose, KeepsTheResultAndFuses) {
  const ir::Graph before = ir::parse(GetParam().graph);
  ir::Graph after = before;
  decompose(after);
  const SymbolSizes sizes{{"b", 2}, {"s", 5}};
  for (const ir::NodeId id : after.order()) {
    const ir::Node& node = after.node(id);
    EXPECT_TRUE(ir::find_primitive(node.op) || node.is("tenon::Bitcast")) << node.op << " is left";
  }
  expect_equivalent(before, after, sizes);
  hoist_movement(after);
  fuse_loops(after);
  expect_equivalent(before, after, sizes);
  EXPECT_EQ(testing::count_ops(after, "tenon::Loop"), GetParam().loops) << ir::print(after);
}

#define UNARY(name, line) \
  Case { name, "graph g {\n input %x: f32[b,s,6]\n %y: f32[b,s,6] = " line "\n output %y\n}", 1 }

INSTANTIATE_TEST_SUITE_P(
    Activations, Decompose,
    ::testing::Values(UNARY("Relu", "Relu(%x)"), UNARY("LeakyRelu", "LeakyRelu(%x) {alpha=0.2}"),
                      UNARY("Elu", "Elu(%x) {alpha=1.5}"), UNARY("Selu", "Selu(%x)"),
                      UNARY("Celu", "Celu(%x) {alpha=2.0}"),
                      UNARY("Thresholded", "ThresholdedRelu(%x) {alpha=0.3}"),
                      UNARY("Sigmoid", "Sigmoid(%x)"), UNARY("HardSigmoid", "HardSigmoid(%x)"),
                      UNARY("HardSwish", "HardSwish(%x)"), UNARY("Swish", "Swish(%x) {alpha=1.2}"),
                      UNARY("Softplus", "Softplus(%x)"), UNARY("Softsign", "Softsign(%x)"),
                      UNARY("Mish", "Mish(%x)"), UNARY("Gelu", "Gelu(%x)"),
                      UNARY("GeluTanh", "Gelu(%x) {approximate=\"tanh\"}"),
                      UNARY("QuickGelu", "com.microsoft::QuickGelu(%x)"),
                      UNARY("FastGelu", "com.microsoft::FastGelu(%x)"),
                      UNARY("Shrink", "Shrink(%x) {bias=0.1, lambd=0.4}"),
                      UNARY("Softmax", "Softmax@13(%x) {axis=-1}"),
                      UNARY("SoftmaxMid", "Softmax@13(%x) {axis=1}"),
                      UNARY("SoftmaxFlat", "Softmax@11(%x) {axis=1}"),
                      UNARY("LogSoftmax", "LogSoftmax@13(%x) {axis=2}"),
                      UNARY("Hardmax", "Hardmax@13(%x) {axis=1}"),
                      UNARY("LpNorm1", "LpNormalization(%x) {axis=-1, p=1}"),
                      UNARY("LpNorm2", "LpNormalization(%x) {axis=1, p=2}"),
                      UNARY("MeanVariance", "MeanVarianceNormalization(%x) {axes=[0,2]}"),
                      Case{"PRelu", R"(graph g {
          input %x: f32[b,s,6]
          input %p: f32[6]
          %y: f32[b,s,6] = PRelu(%x, %p)
          output %y
        })"},
                      Case{"Clip", R"(graph g {
          input %x: i32[b,s]
          input %low: i32[]
          const %high: i32[1] = hex:02000000
          %y: i32[b,s] = Clip@13(%x, %low, %high)
          output %y
        })"},
                      Case{"HalfGelu", R"(graph g {
          input %x: f16[b,s]
          %y: f16[b,s] = Gelu(%x)
          output %y
        })"},
                      Case{"Mean", R"(graph g {
          input %x: f32[b,s]
          input %y: f32[s]
          input %z: f32[b,1]
          %w: f32[b,s] = Mean(%x, %y, %z)
          output %w
        })"}));

INSTANTIATE_TEST_SUITE_P(Norms, Decompose,
                         ::testing::Values(Case{"LayerNorm", R"(graph g {
          input %x: f16[b,s,6]
          input %w: f16[6]
          input %c: f16[6]
          %y: f16[b,s,6], %m: f32[b,s,1], %i: f32[b,s,1] = LayerNormalization@17(%x, %w, %c) {axis=-1}
          output %y
          output %m
          output %i
        })"},
                                           Case{"LayerNormTwoAxes", R"(graph g {
          input %x: f32[b,s,6]
          input %w: f32[s,6]
          %y: f32[b,s,6] = LayerNormalization@17(%x, %w) {axis=1, epsilon=0.01}
          output %y
        })"},
                                           Case{"RmsNorm", R"(graph g {
          input %x: bf16[b,s,6]
          input %w: bf16[6]
          %y: bf16[b,s,6] = RMSNormalization@23(%x, %w)
          output %y
        })"},
                                           Case{"SkipLayerNorm", R"(graph g {
          input %x: f32[b,s,6]
          input %k: f32[b,s,6]
          input %w: f32[6]
          input %c: f32[6]
          input %a: f32[6]
          %y: f32[b,s,6], _, _, %t: f32[b,s,6] = com.microsoft::SkipLayerNormalization@1(%x, %k, %w, %c, %a)
          output %y
          output %t
        })"},
                                           Case{"SkipRmsNorm", R"(graph g {
          input %x: f32[b,s,6]
          input %k: f32[b,s,6]
          input %w: f32[6]
          %y: f32[b,s,6], _, _, %t: f32[b,s,6] = com.microsoft::SkipSimplifiedLayerNormalization@1(%x, %k, %w) {epsilon=0.001}
          output %y
          output %t
        })"},
                                           Case{"SkipRmsNormOfHalves", R"(graph g {
          input %x: f16[b,s,6]
          input %k: f16[b,s,6]
          input %w: f16[6]
          %y: f16[b,s,6], _, _, %t: f16[b,s,6] = com.microsoft::SkipSimplifiedLayerNormalization@1(%x, %k, %w)
          output %y
          output %t
        })"},
                                           Case{"GroupNorm", R"(graph g {
          input %x: f32[b,6,s,3]
          input %w: f32[6]
          input %c: f32[6]
          %y: f32[b,6,s,3] = GroupNormalization@21(%x, %w, %c) {num_groups=2}
          output %y
        })"},
                                           Case{"InstanceNorm", R"(graph g {
          input %x: f32[b,6,s,3]
          input %w: f32[6]
          input %c: f32[6]
          %y: f32[b,6,s,3] = InstanceNormalization@6(%x, %w, %c)
          output %y
        })"}));

INSTANTIATE_TEST_SUITE_P(Quantisation, Decompose,
                         ::testing::Values(Case{"DequantizePerTensor", R"(graph g {
          input %x: i8[b,s]
          input %k: f32[1]
          input %z: i8[1]
          %y: f32[b,s] = DequantizeLinear@21(%x, %k, %z)
          output %y
        })"},
                                           Case{"DequantizePerAxis", R"(graph g {
          input %x: u8[b,6,s]
          input %k: f16[6]
          input %z: u8[6]
          %y: f16[b,6,s] = DequantizeLinear@21(%x, %k, %z) {axis=1}
          output %y
        })"},
                                           Case{"DequantizeBlocked", R"(graph g {
          input %x: u4[b,10]
          input %k: f32[b,3]
          input %z: u4[b,3]
          %y: f32[b,10] = DequantizeLinear@21(%x, %k, %z) {axis=-1, block_size=4}
          output %y
        })"},
                                           Case{"DequantizeNvfp4", R"(graph g {
          input %x: f4e2m1[b,32]
          input %k: f8e4m3fn[b,2]
          input %g: f32[]
          %s: f32[b,2] = DequantizeLinear@23(%k, %g)
          %y: f32[b,32] = DequantizeLinear@23(%x, %s) {axis=-1, block_size=16}
          output %y
        })"},
                                           Case{"DequantizeMx", R"(graph g {
          input %x: f8e4m3fn[b,64]
          input %k: f8e8m0[b,2]
          %y: f32[b,64] = DequantizeLinear@24(%x, %k) {axis=-1, block_size=32, output_dtype=1}
          output %y
        })"},
                                           Case{"DequantizeInt32", R"(graph g {
          input %x: i32[b,s]
          input %k: f32[]
          %y: f32[b,s] = DequantizeLinear@21(%x, %k)
          output %y
        })"},
                                           Case{"QuantizeBlocked", R"(graph g {
          input %x: f16[b,10]
          input %k: f16[b,3]
          %y: i8[b,10] = QuantizeLinear@21(%x, %k) {axis=-1, block_size=4, output_dtype=3}
          output %y
        })"},
                                           Case{"QuantizeFp8", R"(graph g {
          input %x: f32[b,s]
          const %k: f32[] = hex:0000003f
          %y: f8e4m3fn[b,s] = QuantizeLinear@23(%x, %k) {output_dtype=17, precision=10, saturate=0}
          output %y
        })"},
                                           Case{"DynamicQuantize", R"(graph g {
          input %x: f32[4,9]
          %y: u8[4,9], %k: f32[], %z: u8[] = DynamicQuantizeLinear@11(%x)
          output %y
          output %k
          output %z
        })"},
                                           // Of unknown size: the range is found in one loop, the
                                           // codes are written by another.
                                           Case{"DynamicQuantizeLarge", R"(graph g {
          input %x: f32[b,s]
          %y: u8[b,s], %k: f32[], %z: u8[] = DynamicQuantizeLinear@11(%x)
          output %y
          output %k
          output %z
        })",
                                                2},
                                           Case{"Fp4Dynamic", R"(graph g {
          input %x: f16[b,32]
          const %g: f32[] = hex:0000003f
          %y: f4e2m1[b,32], %k: f8e4m3fn[b,2] = trt::TRT_FP4DynamicQuantize(%x, %g) {axis=-1, block_size=16}
          output %y
          output %k
        })"},
                                           Case{"Fp4AndBack", R"(graph g {
          input %x: f16[b,64]
          %y: f16[b,64] = trt::TRT_FP4QDQ(%x) {block_size=32}
          output %y
        })",
                                                4},
                                           Case{"Mxfp8Dynamic", R"(graph g {
          input %x: f16[b,64]
          %y: f8e4m3fn[b,64], %k: u8[b,2] = trt::TRT_MXFP8DynamicQuantize(%x) {axis=-1, block_size=32}
          output %y
          output %k
        })"},
                                           Case{"GatherOfDequantized", R"(graph g {
          input %w: i4[7,8]
          input %k: f32[7,2]
          input %i: i64[b,s]
          %d: f32[7,8] = DequantizeLinear@21(%w, %k) {axis=1, block_size=4}
          %y: f32[b,s,8] = Gather@13(%d, %i) {axis=0}
          output %y
        })"},
                                           Case{"GatherBlockQuantized", R"(graph g {
          const %w: u8[3,4] = hex:10325476981032547698badc
          input %k: f32[3,2]
          input %i: i64[b,s]
          %y: f32[b,s,8] = com.microsoft::GatherBlockQuantized@1(%w, %i, %k) {bits=4, block_size=4, gather_axis=0, quantize_axis=1}
          output %y
        })"}));

INSTANTIATE_TEST_SUITE_P(
    Movement, Decompose,
    ::testing::Values(Case{"Tile", R"(graph g {
          input %x: f32[b,3]
          const %r: i64[2] = hex:02000000000000000300000000000000
          %y: f32[2*b,9] = Tile@13(%x, %r)
          output %y
        })"},
                      Case{"PadConstant", R"(graph g {
          input %x: f32[b,3]
          const %p: i64[4] = hex:0000000000000000010000000000000002000000000000000000000000000000
          const %v: f32[] = hex:0000803f
          %y: f32[b+2,4] = Pad@13(%x, %p, %v) {mode="constant"}
          output %y
        })"},
                      // The indices are a loop of their own: a kernel checks what it gathers by.
                      Case{"PadReflect", R"(graph g {
          input %x: f32[3,s]
          const %p: i64[4] = hex:0000000000000000020000000000000000000000000000000100000000000000
          %y: f32[3,s+3] = Pad@13(%x, %p) {mode="reflect"}
          output %y
        })",
                           2},
                      Case{"DepthToSpace", R"(graph g {
          input %x: f32[b,8,2,3]
          %y: f32[b,2,4,6] = DepthToSpace@13(%x) {blocksize=2}
          output %y
        })"},
                      Case{"SpaceToDepth", R"(graph g {
          input %x: f32[b,2,4,6]
          %y: f32[b,8,2,3] = SpaceToDepth@13(%x) {blocksize=2}
          output %y
        })"},
                      Case{"Trilu", R"(graph g {
          input %x: f32[b,s,4]
          input %k: i64[]
          %y: f32[b,s,4] = Trilu@14(%x, %k) {upper=0}
          output %y
        })"},
                      Case{"OneHot", R"(graph g {
          input %i: i64[b,s]
          const %d: i64[] = hex:0300000000000000
          input %v: f32[2]
          %y: f32[b,s,3] = OneHot@11(%i, %d, %v) {axis=-1}
          output %y
        })"}));

TEST(DecomposeGlobalPool, ReducesTheSpatialAxes) {
  ir::Graph graph = ir::parse(R"(graph g {
    input %x: f32[b,3,s,2]
    %y: f32[b,3,1,1] = GlobalAveragePool@1(%x)
    output %y
  })");
  decompose(graph);
  EXPECT_EQ(testing::outline_text(graph), "ReduceMean");
  EXPECT_EQ(graph.node(graph.order()[0]).integers("axes"), (std::vector<int64_t>{2, 3}));
}

TEST(DecomposeLeaves, WhatItCannotExpress) {
  ir::Graph graph = ir::parse(R"(graph g {
    input %x: f32[b,s]
    input %w: f32[s]
    input %c: f32[s]
    input %m: f32[s]
    input %v: f32[s]
    %y: f32[b,s], %rm: f32[s], %rv: f32[s] = BatchNormalization@15(%x, %w, %c, %m, %v) {training_mode=1}
    output %y
    output %rm
  })");
  const std::string before = ir::print(graph);
  decompose(graph);
  EXPECT_EQ(ir::print(graph), before);
}

}  // namespace
}  // namespace tenon
