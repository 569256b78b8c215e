// Every operator that a rule knows states what it asks of sizes, or is listed here with the reason
// why it asks for nothing. A kernel that believed a size which nobody compared would read or write
// past a buffer.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/decompose/rules.h"
#include "graph_partitioner/passes/infer_shapes.h"
#include "graph_partitioner/passes/normalize/rules.h"
#include "graph_partitioner/passes/scaled_dot_forms/forms.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

struct Sample {
  const char* op;
  const char* inputs;    // dims of a, b, c, …: every size a symbol of its own
  const char* node;      // from the op's version on
  const char* expected;  // requirements, in order
};

constexpr Sample kSamples[] = {
    {"Attention", "[b,4,s,8];[c,2,t,8];[d,e,u,9]", "@23(%a, %b, %c)",
     "equal(c,b) equal(d,b) equal(e,2) equal(u,t)"},
    {"AveragePool", "[b,c,h,w]", "@19(%a) {kernel_shape=[2,2], strides=[2,2]}",
     "at_most(min(1,b),c*h*w) at_most(1,h) at_most(1,w)"},
    {"BatchNormalization", "[b,c,s];[n];[m];[k];[l]", "@15(%a, %b, %c, %d, %e)",
     "equal(n,c) equal(m,c) equal(k,c) equal(l,c)"},
    {"com.microsoft::AllToAll", "[b,s]", "@1(%a) {group_size=4}", "divides(4,b)"},
    {"tenon::AllGather", "[b,s]", "(%a) {parts=[3,2], part=1, ranks=2}", "equal(b,2)"},
    {"tenon::AllToAll", "[b,s]", "(%a) {ranks=4}", "divides(4,b)"},
    {"tenon::ReduceScatter", "[b,s]", "(%a) {ranks=4}", "divides(4,b)"},
    {"Clip", "[b];[n];[m]", "@13(%a, %b, %c)", "equal(n,1) equal(m,1)"},
    {"Concat", "[b,s];[c,t]", "@13(%a, %b) {axis=1}", "equal(b,c)"},
    {"Conv", "[b,c,h,w];[o,d,3,3]", "@11(%a, %b)", "equal(c,d) at_most(0,h-3) at_most(0,w-3)"},
    {"ConvInteger", "[b,c,h,w];[o,d,3,3]", "@10(%a, %b)",
     "equal(c,d) at_most(0,h-3) at_most(0,w-3)"},
    {"ConvTranspose", "[b,c,h];[d,o,3]", "@11(%a, %b)", "equal(c,d)"},
    {"CumSum", "[b,s];[n]", "@14(%a, %b)", "equal(n,1)"},
    {"DepthToSpace", "[b,c,h,w]", "@13(%a) {blocksize=2}", "divides(4,c)"},
    {"DequantizeLinear", "[b,s];[n];[m]", "@19(%a, %b, %c) {axis=0}", "equal(m,n) equal(n,b)"},
    {"Einsum", "[i,j];[k,l]", "@12(%a, %b) {equation=\"xy,yz->xz\"}", "broadcasts(j,k)"},
    {"Expand", "[b,s]", "(%a)", "stretches(b,p) stretches(s,q)"},
    {"GatherElements", "[b,s];[c,t]", "@13(%a, %b) {axis=1}", "at_most(c,b)"},
    {"GatherND", "[b,s];[c,t,1]", "@13(%a, %b) {batch_dims=1}", "equal(c,b)"},
    {"Gemm", "[b,k];[j,n];[p,q]", "@13(%a, %b, %c)", "equal(k,j) stretches(p,b) stretches(q,n)"},
    {"GlobalAveragePool", "[b,c,h]", "@1(%a)", "at_most(min(1,b),c*h)"},
    {"GlobalLpPool", "[b,c,h]", "@2(%a)", "at_most(min(1,b),c*h)"},
    {"GlobalMaxPool", "[b,c,h]", "@1(%a)", "at_most(min(1,b),c*h)"},
    {"GroupNormalization", "[b,c,s];[n];[m]", "@21(%a, %b, %c) {num_groups=2}",
     "divides(2,c) equal(n,c) equal(m,c)"},
    {"GridSample", "[b,c,h,w];[n,p,q,d]", "@20(%a, %b)", "equal(n,b) equal(d,2)"},
    {"InstanceNormalization", "[b,c,s];[n];[m]", "@6(%a, %b, %c)", "equal(n,c) equal(m,c)"},
    {"LayerNormalization", "[b,s];[n];[m]", "@17(%a, %b, %c)",
     "stretches(n,s) stretches(m,s) at_most(1,s)"},
    {"LpPool", "[b,c,h]", "@18(%a) {kernel_shape=[3], strides=[3]}",
     "at_most(min(1,b),c*h) at_most(1,h)"},
    {"MatMul", "[b,m,k];[c,j,n]", "@13(%a, %b)", "equal(k,j) broadcasts(b,c)"},
    {"MatMulInteger", "[m,k];[j,n]", "@10(%a, %b)", "equal(k,j)"},
    {"MaxPool", "[b,c,h]", "@12(%a) {kernel_shape=[3]}", "at_most(min(1,b),c*h) at_most(0,h-2)"},
    {"PRelu", "[b,s];[n]", "@16(%a, %b)", "stretches(n,s)"},
    {"QLinearConv", "[b,c,h];[];[];[o,d,3]", "@10(%a, %b, %c, %d)", "equal(c,d) at_most(0,h-3)"},
    {"QLinearMatMul", "[m,k];[];[];[j,n]", "@21(%a, %b, %c, %d)", "equal(k,j)"},
    {"QuantizeLinear", "[b,s];[n];[m]", "@19(%a, %b, %c) {axis=0}", "equal(m,n) equal(n,b)"},
    {"RMSNormalization", "[b,s];[n]", "@23(%a, %b)", "stretches(n,s)"},
    {"Reshape", "[b,s]", "(%a)", "equal(b*s,p*q)"},
    {"RotaryEmbedding", "[b,4,s,8];[r,4];[t,4];[c,u]", "@23(%a, %b, %c, %d)",
     "equal(t,r) at_most(s,r) equal(c,b) equal(u,s)"},
    {"Scatter", "[b,s];[c,t];[d,u]", "@9(%a, %b, %c) {axis=1}",
     "equal(d,c) equal(u,t) at_most(c,b)"},
    {"ScatterElements", "[b,s];[c,t];[d,u]", "@18(%a, %b, %c) {axis=1}",
     "equal(d,c) equal(u,t) at_most(c,b)"},
    {"ScatterND", "[b,s];[c,1];[d,u]", "@18(%a, %b, %c)", "equal(d,c) equal(u,s)"},
    {"SimplifiedLayerNormalization", "[b,s];[n]", "@1(%a, %b)", "stretches(n,s) at_most(1,s)"},
    {"SpaceToDepth", "[b,c,h,w]", "@13(%a) {blocksize=2}", "divides(2,h) divides(2,w)"},
    {"Squeeze", "[b,s]", "@11(%a) {axes=[1]}", "equal(s,1)"},
    {"TensorScatter", "[b,h,l,r];[c,i,t,q];[n]", "@24(%a, %b, %c)",
     "equal(c,b) equal(i,h) equal(q,r) at_most(t,l) equal(n,b)"},
    {"Trilu", "[b,s];[n]", "@14(%a, %b)", "equal(n,1)"},
    {"com.microsoft::Attention", "[b,s,i];[j,12];[n];_;[x,c,h,p,d]",
     "@1(%a, %b, %c, _, %e) {num_heads=2}",
     "equal(i,j) equal(n,12) equal(x,2) equal(c,b) equal(h,2) equal(d,2)"},
    {"com.microsoft::BiasGelu", "[b,s];[n]", "@1(%a, %b)", "equal(n,s)"},
    {"com.microsoft::FastGelu", "[b,s];[n]", "@1(%a, %b)", "equal(n,s)"},
    {"com.microsoft::FusedConv", "[b,c,h,w];[o,d,3,3]", "@1(%a, %b)",
     "equal(c,d) at_most(0,h-3) at_most(0,w-3)"},
    {"com.microsoft::FusedGemm", "[b,k];[j,n]", "@1(%a, %b)", "equal(k,j)"},
    {"com.microsoft::FusedMatMul", "[m,k];[n,j]", "@1(%a, %b) {transB=1}", "equal(k,j)"},
    {"com.microsoft::GatherBlockQuantized", "[b,s];[i];[c,t]",
     "@1(%a, %b, %c) {block_size=16, quantize_axis=1}", "equal(c,b) equal(t,floordiv(s+15,16))"},
    {"com.microsoft::GroupQueryAttention", "[b,s,h];[b,s,8];[b,s,8];_;_;[n];[]",
     "@1(%a, %b, %c, _, _, %f, %g) {kv_num_heads=2, num_heads=2}", "divides(2,h) equal(n,b)"},
    {"com.microsoft::GridSample", "[b,c,h,w];[n,p,q,d]", "@1(%a, %b)", "equal(n,b) equal(d,2)"},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", "[m,k];[n,j]", "@1(%a, %b)", "equal(k,2*j)"},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", "[m,k];[n,j]", "@1(%a, %b)", "equal(k,j)"},
    {"com.microsoft::MatMulBnb4", "[m,k]", "@1(%a) {K=64, N=32}", "equal(k,64)"},
    {"com.microsoft::MatMulIntegerToFloat", "[m,k];[j,n]", "@1(%a, %b)", "equal(k,j)"},
    {"com.microsoft::MatMulNBits", "[m,k]", "@1(%a) {K=64, N=32}", "equal(k,64)"},
    {"com.microsoft::MultiHeadAttention", "[b,s,8];[c,t,8];[d,u,8];_;_;[e,h,r,w]",
     "@1(%a, %b, %c, _, _, %f) {num_heads=2}",
     "equal(c,b) equal(d,b) equal(u,t) stretches(e,b) stretches(h,2) equal(r,s) equal(w,t)"},
    {"com.microsoft::PagedAttention", "[t,8];[t,8];[t,8];[p,16,2,4];[p,16,2,4];[n];[m];[s,w]",
     "@1(%a, %b, %c, %d, %e, %f, %g, %h) {kv_num_heads=2, num_heads=2}", "equal(n,s+1) equal(m,s)"},
    {"com.microsoft::RotaryEmbedding", "[b,4,s,8];[c,u];[r,4];[t,4]", "@1(%a, %b, %c, %d)",
     "equal(t,r) at_most(s,r) equal(c,b) equal(u,s)"},
    {"com.microsoft::SimplifiedLayerNormalization", "[b,s];[n]", "@1(%a, %b)",
     "stretches(n,s) at_most(1,s)"},
    {"com.microsoft::SkipLayerNormalization", "[b,s];[c,t];[n];[m]", "@1(%a, %b, %c, %d)",
     "stretches(c,b) stretches(t,s) equal(t,s) equal(c,b) equal(n,s) equal(m,s)"},
    {"com.microsoft::SkipSimplifiedLayerNormalization", "[b,s];[c,t];[n]", "@1(%a, %b, %c)",
     "stretches(c,b) stretches(t,s) equal(t,s) equal(c,b) equal(n,s)"},
    {"com.microsoft::TransposeMatMul", "[m,k];[n,j]", "@1(%a, %b) {transB=1}", "equal(k,j)"},
    {"tenon::BlockExpand", "[b,s]", "(%a) {axis=1, block=16}", "equal(s,floordiv(q+15,16))"},
    {"tenon::Pick", "[b,c,h];[n,m]", "(%a, %b) {axis=2}", "broadcasts(c,m) broadcasts(b,n)"},
    {"tenon::Quantize", "[b,s];[n]", "(%a, %b)", "stretches(n,s)"},
    {"tenon::ScaledDot", "[m,k];[j,n];_;_;_;_;[x];[y]", "(%a, %b, _, _, _, _, %g, %h)",
     "equal(k,j) equal(x,1) stretches(y,n)"},
};

// Asked of all: operands broadcast with each other.
constexpr const char* kBroadcasting[] = {"Add",       "And",         "BitShift", "BitwiseAnd",
                                         "BitwiseOr", "BitwiseXor",  "Div",      "Equal",
                                         "Max",       "Min",         "Mean",     "Mod",
                                         "Mul",       "Or",          "Pow",      "Sub",
                                         "Sum",       "Xor",         "Greater",  "GreaterOrEqual",
                                         "Less",      "LessOrEqual", "Where"};

constexpr std::string_view kOneOperand = "one tensor, and every size of the result comes from it";
constexpr std::string_view kNumbersOnly =
    "sizes come from attributes or from numbers that are known";
constexpr std::string_view kNoKernel = "no kernel, decomposition or matcher of ours takes it";
constexpr std::string_view kRewritten =
    "rewritten to QuantizeLinear or DequantizeLinear, which ask";
constexpr std::string_view kIndices = "any shape of indices fits; their values are checked";
constexpr std::string_view kMatcher =
    "the matcher compares the sizes, the kernel asks for the rest";

const std::map<std::string_view, std::string_view>& asks_for_nothing() {
  static const auto* const table = new std::map<std::string_view, std::string_view>{
      {"com.microsoft::AllGather", kOneOperand},
      {"com.microsoft::AllReduce", kOneOperand},
      {"tenon::AllReduce", kOneOperand},
      {"tenon::Broadcast", kOneOperand},
      {"tenon::Permute", kOneOperand},
      {"AffineGrid", kNoKernel},
      {"ArgMax", kOneOperand},
      {"ArgMin", kOneOperand},
      {"Bernoulli", kNoKernel},
      {"BlackmanWindow", kNoKernel},
      {"CastLike", "only the type of its second operand is read"},
      {"CenterCropPad", kNoKernel},
      {"Col2Im", kNoKernel},
      {"Constant", kNumbersOnly},
      {"ConstantOfShape", kNumbersOnly},
      {"DeformConv", kNoKernel},
      {"Det", kNoKernel},
      {"Dropout", "its ratio is not read outside of training"},
      {"DynamicQuantizeLinear", kOneOperand},
      {"EyeLike", kOneOperand},
      {"Flatten", kOneOperand},
      {"GRU", kNoKernel},
      {"Gather", kIndices},
      {"HammingWindow", kNoKernel},
      {"HannWindow", kNoKernel},
      {"LRN", kNoKernel},
      {"LSTM", kNoKernel},
      {"MaxRoiPool", kNoKernel},
      {"MaxUnpool", kNoKernel},
      {"MelWeightMatrix", kNoKernel},
      {"Multinomial", kNoKernel},
      {"NegativeLogLikelihoodLoss", kNoKernel},
      {"OneHot", "depth and values are numbers that are known"},
      {"Pad", kNumbersOnly},
      {"RNN", kNoKernel},
      {"RandomNormal", kNoKernel},
      {"RandomNormalLike", kNoKernel},
      {"RandomUniform", kNoKernel},
      {"RandomUniformLike", kNoKernel},
      {"Range", kNumbersOnly},
      {"Resize", kNoKernel},
      {"ReverseSequence", kNoKernel},
      {"RoiAlign", kNoKernel},
      {"Shape", kOneOperand},
      {"Size", kOneOperand},
      {"Slice", "starts and ends are clamped to the axis"},
      {"SoftmaxCrossEntropyLoss", kNoKernel},
      {"Split",
       "sizes that are not given are a share of the axis; SplitBySizes below has the rest"},
      {"Tile", kNumbersOnly},
      {"TopK", kNoKernel},
      {"Transpose", kOneOperand},
      {"Unsqueeze", kOneOperand},
      {"Upsample", kNoKernel},
      {"com.microsoft::BiasAdd", kNoKernel},
      {"com.microsoft::BiasSplitGelu", kNoKernel},
      {"com.microsoft::ComplexMul", kNoKernel},
      {"com.microsoft::DequantizeLinear", kRewritten},
      {"com.microsoft::DynamicQuantizeMatMul", kNoKernel},
      {"com.microsoft::EmbedLayerNormalization", kNoKernel},
      {"com.microsoft::GroupNorm", kNoKernel},
      {"com.microsoft::Inverse", kNoKernel},
      {"com.microsoft::MoE", kNoKernel},
      {"com.microsoft::QLinearAdd", kNoKernel},
      {"com.microsoft::QLinearConcat", kNoKernel},
      {"com.microsoft::QLinearGlobalAveragePool", kNoKernel},
      {"com.microsoft::QLinearLeakyRelu", kNoKernel},
      {"com.microsoft::QLinearMul", kNoKernel},
      {"com.microsoft::QLinearSigmoid", kNoKernel},
      {"com.microsoft::QLinearSoftmax", kNoKernel},
      {"com.microsoft::QLinearWhere", kNoKernel},
      {"com.microsoft::QMoE", kNoKernel},
      {"com.microsoft::QuantizeLinear", kRewritten},
      {"com.microsoft::SkipGroupNorm", kNoKernel},
      {"tenon::Attention", kMatcher},
      {"tenon::DimValue", kNumbersOnly},
      {"trt::DequantizeLinear", kRewritten},
      {"trt::QuantizeLinear", kRewritten},
      {"trt::TRT_FP4DynamicQuantize", kOneOperand},
      {"trt::TRT_FP4QDQ", kOneOperand},
      {"trt::TRT_FP8DequantizeLinear", kRewritten},
      {"trt::TRT_FP8QuantizeLinear", kRewritten},
      {"trt::TRT_INT4DequantizeLinear", kRewritten},
      {"trt::TRT_INT4QuantizeLinear", kRewritten},
      {"trt::TRT_INT8DequantizeLinear", kRewritten},
      {"trt::TRT_INT8QuantizeLinear", kRewritten},
      {"trt::TRT_MXFP8DequantizeLinear", kRewritten},
      {"trt::TRT_MXFP8DynamicQuantize", kOneOperand},
  };
  return *table;
}

// Ops of one tensor whose result has its shape.
bool is_unary(std::string_view op) {
  static const std::set<std::string_view> ops = {"Abs",
                                                 "Acos",
                                                 "Acosh",
                                                 "Asin",
                                                 "Asinh",
                                                 "Atan",
                                                 "Atanh",
                                                 "BitwiseNot",
                                                 "Cast",
                                                 "Ceil",
                                                 "Celu",
                                                 "Cos",
                                                 "Cosh",
                                                 "Elu",
                                                 "Erf",
                                                 "Exp",
                                                 "Floor",
                                                 "Gelu",
                                                 "HardSigmoid",
                                                 "HardSwish",
                                                 "Hardmax",
                                                 "Identity",
                                                 "IsInf",
                                                 "IsNaN",
                                                 "LeakyRelu",
                                                 "Log",
                                                 "LogSoftmax",
                                                 "LpNormalization",
                                                 "MeanVarianceNormalization",
                                                 "Mish",
                                                 "Neg",
                                                 "Not",
                                                 "Reciprocal",
                                                 "Relu",
                                                 "Round",
                                                 "Selu",
                                                 "Shrink",
                                                 "Sigmoid",
                                                 "Sign",
                                                 "Sin",
                                                 "Sinh",
                                                 "Softmax",
                                                 "Softplus",
                                                 "Softsign",
                                                 "Sqrt",
                                                 "Swish",
                                                 "Tan",
                                                 "Tanh",
                                                 "ThresholdedRelu",
                                                 "com.microsoft::Gelu",
                                                 "com.microsoft::QuickGelu"};
  return ops.contains(op) || op.starts_with("Reduce");
}

std::string requirements_of(const ir::Graph& graph) {
  std::string text;
  for (const ir::Requirement& required : graph.requirements()) {
    text +=
        fmt::format("{}{}({},{})", text.empty() ? "" : " ", ir::relation_name(required.relation),
                    required.left.text(), required.right.text());
  }
  return text;
}

// The result has shape [p,q] where a pass has written the node.
ir::Graph graph_of(const std::string& op, std::string dims, const std::string& node) {
  std::string text = "graph main {\n";
  for (char name = 'a'; !dims.empty(); ++name) {
    const size_t end = std::min(dims.find(';'), dims.size());
    const std::string own = dims.substr(0, end);
    if (own != "_") text += fmt::format("  input %{}: f32{}\n", name, own);
    dims.erase(0, end + 1);
  }
  const bool is_written = node.front() == '(';
  text +=
      fmt::format("  %y: f32{} = {}{}\n  output %y\n}}\n", is_written ? "[p,q]" : "[*]", op, node);
  return ir::parse(text);
}

TEST(SizeRequirements, EveryOperatorStatesWhatItAsks) {
  for (const Sample& sample : kSamples) {
    SCOPED_TRACE(sample.op);
    ir::Graph graph = graph_of(sample.op, sample.inputs, sample.node);
    infer_shapes(graph);
    EXPECT_EQ(requirements_of(graph), sample.expected);
    EXPECT_TRUE(graph.value(graph.outputs()[0]).shape.has_value());
  }
  for (const char* op : kBroadcasting) {
    SCOPED_TRACE(op);
    ir::Graph graph = graph_of(op, "[b,s];[c,1];[t]", "@13(%a, %b, %c)");
    infer_shapes(graph);
    EXPECT_EQ(requirements_of(graph), "broadcasts(b,c) broadcasts(s,t)");
  }
}

TEST(SizeRequirements, NoOperatorIsForgotten) {
  std::set<std::string_view> stated(std::begin(kBroadcasting), std::end(kBroadcasting));
  for (const Sample& sample : kSamples) stated.insert(sample.op);
  for (const std::string_view op : ops_with_shape_rules()) {
    const int places = stated.contains(op) + asks_for_nothing().contains(op) + is_unary(op);
    EXPECT_EQ(places, 1) << op << " must state requirements or be listed with the reason";
  }
}

// An op without a rule would keep the shape that the model declares.
TEST(SizeRequirements, WhateverIsRewrittenHasAShapeRule) {
  std::set<std::string_view> ops;
  for (const auto family :
       {normalization::view_rules(), normalization::reduction_rules(), normalization::opset_rules(),
        normalization::quantizer_rules(), normalization::einsum_rules(),
        scaled_dot_forms::plain_forms(), scaled_dot_forms::packed_weight_forms(),
        attention_forms::unfused_forms(), attention_forms::onnx_forms(),
        attention_forms::multi_head_forms(), attention_forms::group_query_forms(),
        attention_forms::paged_forms(), attention_forms::rotary_forms(),
        attention_forms::new_head_forms()}) {
    for (const NamedRewrite& rule : family) ops.insert(rule.op);
  }
  for (const auto family : {decomposition::activation_rules(), decomposition::normalization_rules(),
                            decomposition::softmax_rules(), decomposition::quantization_rules(),
                            decomposition::movement_rules(), decomposition::position_rules(),
                            decomposition::variadic_rules(), decomposition::collective_rules()}) {
    for (const decomposition::NamedRule& rule : family) ops.insert(rule.op);
  }
  for (const ir::Primitive& primitive : ir::primitives()) ops.insert(primitive.op);
  const auto known = ops_with_shape_rules();
  for (const std::string_view op : ops) {
    if (op.starts_with("tenon::")) continue;  // passes of ours give them their shapes
    EXPECT_TRUE(std::ranges::binary_search(known, op)) << op;
  }
}

TEST(SizeRequirements, ContradictionsLeaveTheNodeToOthers) {
  const ir::Graph graphs[] = {
      graph_of("MatMul", "[2,3];[4,5]", "@13(%a, %b)"),
      graph_of("Concat", "[2,3];[4,5]", "@13(%a, %b) {axis=1}"),
      graph_of("Add", "[2,3];[4,3]", "@13(%a, %b)"),
      graph_of("Squeeze", "[b,2]", "@11(%a) {axes=[1]}"),
      graph_of("ScatterElements", "[2,3];[4,3];[4,3]", "@18(%a, %b, %c) {axis=1}"),
      graph_of("TensorScatter", "[2,3,1,4];[2,3,9,4]", "@24(%a, %b)"),
      graph_of("GatherElements", "[n,3];[n+1,3]", "@13(%a, %b) {axis=1}"),
      graph_of("DepthToSpace", "[b,5,h,w]", "@13(%a) {blocksize=2}"),
  };
  for (ir::Graph graph : graphs) {
    SCOPED_TRACE(ir::print(graph));
    infer_shapes(graph);
    EXPECT_FALSE(graph.value(graph.outputs()[0]).shape.has_value());
    EXPECT_TRUE(graph.requirements().empty());
  }
}

TEST(SizeRequirements, SplitBySizes) {
  ir::Graph graph = ir::parse(R"(graph main {
  input %a: f32[b,s]
  %y: f32[*], %z: f32[*] = Split@11(%a) {axis=1, split=[3,4]}
  output %y
  output %z
})");
  infer_shapes(graph);
  EXPECT_EQ(requirements_of(graph), "equal(7,s)");
}

// Passes dissolve the nodes; what they asked for stays, each once.
TEST(SizeRequirements, SurviveThePasses) {
  ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,k]
  const %s: i64[2] = hex:0200000000000000ffffffffffffffff
  const %w: f32[4,3] = hex:000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
  %r: f32[7,7] = Reshape@13(%x, %s) name="view" sources=[0]
  %m: f32[7,7] = MatMul@13(%r, %w) name="product" sources=[1]
  %y: f32[7,7] = Relu@14(%m) name="end" sources=[2]
  output %y
})");
  const ir::Graph fused = fuse(std::move(graph));
  EXPECT_EQ(requirements_of(fused), "divides(2,k*n) equal(floordiv(k*n,2),4)");
  EXPECT_EQ(fused.requirements()[0].node, "view");
  EXPECT_EQ(fused.requirements()[1].node, "product");
  EXPECT_EQ(text(*fused.value(fused.outputs()[0]).shape), "[2,3]");
}

}  // namespace
}  // namespace tenon
