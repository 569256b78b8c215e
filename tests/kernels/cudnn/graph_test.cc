// From nodes of ONNX to what cuDNN is asked.
#include "kernels/cudnn/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/cudnn/convolution.h"
#include "kernels/cudnn/pooling.h"

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;

ir::Graph parsed(const std::string& node, const std::string& inputs, const std::string& result) {
  return ir::parse("graph g {\n" + inputs + "  %y: " + result + " = " + node + "\n  output %y\n}");
}

std::vector<int64_t> dims_of(const ir::Graph& graph, ir::ValueId id) {
  return static_dims(*graph.value(id).shape);
}

const ir::Node& node_of(const ir::Graph& graph) { return graph.node(graph.order().front()); }

std::string convolution_text(const ir::Graph& graph) {
  const ir::Node& node = node_of(graph);
  const ConvolutionAnswer answer = convolution_of(graph, node);
  if (!answer.support) return answer.support.reason;
  return answer.convolution.graph(dims_of(graph, node.input(0)), dims_of(graph, node.output(0)))
      .text();
}

std::string pooling_text(const ir::Graph& graph) {
  const ir::Node& node = node_of(graph);
  const PoolingAnswer answer = pooling_of(graph, node);
  if (!answer.support) return answer.support.reason;
  return answer.pooling.graph(dims_of(graph, node.input(0)), dims_of(graph, node.output(0))).text();
}

TEST(CudnnGraphTest, AResidualBlockIsOneGraph) {
  EXPECT_EQ(convolution_text(parsed(
                "com.microsoft::FusedConv(%x, %w, %b, %z) {activation=\"Relu\", pads=[1, 1, 1, 1]}",
                "  input %x: f16[2, 8, 14, 14]\n  input %w: f16[16, 8, 3, 3]\n"
                "  input %b: f16[16]\n  input %z: f16[2, 16, 14, 14]\n",
                "f16[2, 16, 14, 14]")),
            "t0: f16[2, 8, 14, 14]\n"
            "t1: f16[16, 8, 3, 3]\n"
            "t2: f16[2, 16, 14, 14]\n"
            "t3: f16[1, 16, 1, 1]\n"
            "t4: f16[2, 16, 14, 14]\n"
            "t5: f32[2, 16, 14, 14] virtual\n"
            "t6: f32[2, 16, 14, 14] virtual\n"
            "t7: f32[2, 16, 14, 14] virtual\n"
            "t5 = convolution(t0, t1) pads [1, 1]..[1, 1] strides [1, 1] dilations [1, 1]\n"
            "t6 = add(t5, t2)\n"
            "t7 = add(t6, t3)\n"
            "t4 = relu(t7)\n");
}

TEST(CudnnGraphTest, OneSpatialDimIsTheSecondOfTwo) {
  EXPECT_EQ(convolution_text(parsed("Conv(%x, %w) {dilations=[2], pads=[3, 1], strides=[2]}",
                                    "  input %x: f32[1, 4, 20]\n  input %w: f32[6, 4, 3]\n",
                                    "f32[1, 6, 10]")),
            "t0: f32[1, 4, 1, 20]\n"
            "t1: f32[6, 4, 1, 3]\n"
            "t2: f32[1, 6, 1, 10]\n"
            "t2 = convolution(t0, t1) pads [0, 3]..[0, 1] strides [1, 2] dilations [1, 2]\n");
}

TEST(CudnnGraphTest, AutoPadIsResolvedFromSizes) {
  const std::string inputs = "  input %x: f32[1, 3, 8, 7]\n  input %w: f32[2, 3, 3, 4]\n";
  EXPECT_THAT(convolution_text(parsed("Conv(%x, %w) {auto_pad=\"SAME_UPPER\", strides=[2, 2]}",
                                      inputs, "f32[1, 2, 4, 4]")),
              HasSubstr("pads [0, 1]..[1, 2] "));
  EXPECT_THAT(convolution_text(parsed("Conv(%x, %w) {auto_pad=\"SAME_LOWER\", strides=[2, 2]}",
                                      inputs, "f32[1, 2, 4, 4]")),
              HasSubstr("pads [1, 2]..[0, 1] "));
  EXPECT_THAT(
      convolution_text(parsed("Conv(%x, %w) {auto_pad=\"VALID\"}", inputs, "f32[1, 2, 6, 4]")),
      HasSubstr("pads [0, 0]..[0, 0] "));
}

TEST(CudnnGraphTest, PoolingNamesItsPadsAndWhatTheyCount) {
  const std::string inputs = "  input %x: f32[1, 3, 8, 8]\n";
  EXPECT_EQ(
      pooling_text(parsed("MaxPool(%x) {kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]}",
                          inputs, "f32[1, 3, 4, 4]")),
      "t0: f32[1, 3, 8, 8]\n"
      "t1: f32[1, 3, 4, 4]\n"
      "t1 = maximum(t0) [3, 3] pads [1, 1]..[1, 1] strides [2, 2]\n");
  EXPECT_THAT(
      pooling_text(parsed("AveragePool(%x) {ceil_mode=1, kernel_shape=[3, 3], strides=[2, 2]}",
                          inputs, "f32[1, 3, 4, 4]")),
      HasSubstr("average(t0) [3, 3] pads [0, 0]..[1, 1] strides [2, 2]"));
  EXPECT_THAT(pooling_text(parsed("AveragePool(%x) {count_include_pad=1, kernel_shape=[2, 2]}",
                                  inputs, "f32[1, 3, 7, 7]")),
              HasSubstr("average_with_pads(t0)"));
}

// Smaller images have one window, which reaches over the end and counts what is not there.
TEST(CudnnGraphTest, CountedPadsAskForImagesThatHoldAWindow) {
  const ir::Graph graph =
      parsed("AveragePool(%x) {count_include_pad=1, kernel_shape=[2, 2], strides=[2, 2]}",
             "  input %x: f32[1, 3, h, 8]\n", "f32[1, 3, max(floordiv(h,2),1), 4]");
  const PoolingAnswer answer = pooling_of(graph, node_of(graph));
  ASSERT_TRUE(answer.support) << answer.support.reason;
  ASSERT_EQ(answer.sizes.size(), 1U);
  EXPECT_EQ(answer.sizes[0].left.text(), "2");
  EXPECT_EQ(answer.sizes[0].relation, ir::Relation::kAtMost);
  EXPECT_EQ(answer.sizes[0].right.text(), "h");
}

TEST(CudnnGraphTest, WhatItIsNotAskedHasAReason) {
  const std::string two = "  input %x: f32[1, 3, 8, 8]\n  input %w: f32[2, 3, 3, 3]\n";
  EXPECT_THAT(convolution_text(parsed("Conv(%x, %w) {pads=[-1, 0, 0, 0]}", two, "f32[1, 2, 5, 6]")),
              HasSubstr("negative pads"));
  EXPECT_THAT(convolution_text(parsed("Conv(%x, %w) {group=2}", two, "f32[1, 2, 6, 6]")),
              HasSubstr("2 groups do not fit 3 and 2 channels"));
  EXPECT_THAT(
      convolution_text(parsed("Conv(%x, %w) {kernel_shape=[5, 5]}", two, "f32[1, 2, 6, 6]")),
      HasSubstr("contradicts"));
  EXPECT_THAT(convolution_text(parsed("com.microsoft::FusedConv(%x, %w) {activation=\"Tanh\"}", two,
                                      "f32[1, 2, 6, 6]")),
              HasSubstr("Tanh"));
  EXPECT_THAT(convolution_text(parsed("Conv(%x, %w)",
                                      "  input %x: f64[1, 3, 8, 8]\n  input %w: f64[2, 3, 3, 3]\n",
                                      "f64[1, 2, 6, 6]")),
              HasSubstr("not f64"));
  const std::string one = "  input %x: f32[1, 3, 8, 8]\n";
  EXPECT_THAT(pooling_text(parsed("MaxPool(%x) {dilations=[2, 2], kernel_shape=[3, 3]}", one,
                                  "f32[1, 3, 4, 4]")),
              HasSubstr("without dilations"));
  EXPECT_THAT(
      pooling_text(parsed("AveragePool(%x) {ceil_mode=1, count_include_pad=1, kernel_shape=[3, 3]}",
                          one, "f32[1, 3, 6, 6]")),
      HasSubstr("count_include_pad with ceil_mode"));
  EXPECT_THAT(pooling_text(parsed(
                  "AveragePool(%x) {count_include_pad=1, kernel_shape=[9, 2], strides=[9, 2]}", one,
                  "f32[1, 3, 1, 4]")),
              HasSubstr("what a window reaches over the end"));
  for (const std::string pads : {"pads=[0, 0, 0, 1]", "auto_pad=\"SAME_UPPER\""}) {
    EXPECT_THAT(pooling_text(parsed(
                    "AveragePool(%x) {count_include_pad=1, kernel_shape=[2, 2], " + pads + "}", one,
                    "f32[1, 3, 7, 8]")),
                HasSubstr("does not count all pads"));
  }
}

}  // namespace
}  // namespace tenon::cudnn
