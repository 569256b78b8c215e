// `trt::*` ops, for which stock ONNX Runtime has no schema: models that hold them load with typed
// outputs, and run when claimed.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

const NodeDetails kTrt{.domain = "trt"};

NodeDetails trt(std::vector<Attribute> attributes) {
  return {.attributes = std::move(attributes), .domain = "trt"};
}

// Codes 0x38 are 1.0 in e4m3; exponents 127 are 1.0 in e8m0.
Tensor ones_fp8(std::vector<int64_t> dims) {
  Tensor tensor{kFp8, std::move(dims), {}};
  tensor.bytes.assign(static_cast<size_t>(tensor.elements()), 0x38);
  return tensor;
}

struct OutputCase {
  Type type;
  int onnx_type;  // ONNX's own numbering, as the attribute has it
};

class Mxfp8Dequantize : public ::testing::TestWithParam<OutputCase> {};

TEST_P(Mxfp8Dequantize, OutputTypeFollowsTheAttribute) {
  Graph graph;
  graph.constant("codes", ones_fp8({4, 64}));
  Tensor exponents{kByte, {4, 2}, std::string(8, 127)};
  exponents.bytes[3] = static_cast<char>(129);  // row 1, second block: times four
  graph.constant("scales", exponents);
  graph.node("TRT_MXFP8DequantizeLinear", {"codes", "scales"}, {"w"},
             trt({{"axis", -1}, {"block_size", 32}, {"output_dtype", GetParam().onnx_type}}));
  graph.node("Cast", {"w"}, {"wide"}, {{{"to", 1}}});
  graph.input("x", kFloat, {4, 64}).node("Mul", {"x", "wide"}, {"y"});
  graph.output("y", kFloat, {4, 64});
  // The output's declared type is what the runtime inferred: a wrong one fails the load.
  Graph typed = graph;
  typed.output("w", GetParam().type, {4, 64});
  EXPECT_EQ(Session(model(typed), {{"claim", "all"}}).output_types().at(1), GetParam().type);

  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  const Tensor y = session.run({{"x", filled({4, 64}, 3)}}).at(0);
  EXPECT_EQ(y.at(0), 3);
  EXPECT_EQ(y.at(1 * 64 + 31), 3);
  EXPECT_EQ(y.at(1 * 64 + 32), 12);
}

INSTANTIATE_TEST_SUITE_P(OutputTypes, Mxfp8Dequantize,
                         ::testing::Values(OutputCase{kFloat, 1}, OutputCase{kHalf, 10},
                                           OutputCase{kBFloat, 16}));

TEST(CustomOps, Mxfp8ScalesMayBeOfTheirOwnType) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "ONNX Runtime loads e8m0 scales from 1.27 on";
  Graph graph;
  graph.constant("codes", ones_fp8({2, 32}));
  graph.constant("scales", {kE8M0, {2, 1}, {127, static_cast<char>(130)}});
  graph.node("TRT_MXFP8DequantizeLinear", {"codes", "scales"}, {"w"},
             trt({{"axis", -1}, {"block_size", 32}, {"output_dtype", 1}}));
  graph.input("x", kFloat, {2, 32}).node("Mul", {"x", "w"}, {"y"});
  graph.output("y", kFloat, {2, 32});
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  const Tensor y = session.run({{"x", filled({2, 32}, 1)}}).at(0);
  EXPECT_EQ(y.at(31), 1);
  EXPECT_EQ(y.at(32), 8);
}

// Quantise and dequantise again: values that the format holds come back unchanged.
TEST(CustomOps, Fp4DynamicQuantizeRoundTrips) {
  Graph graph;
  graph.input("x", kFloat, {"M", 32}).constant("s", floats({}, {1.0F / 448}));
  graph.node("TRT_FP4DynamicQuantize", {"x", "s"}, {"codes", "block_scales"},
             trt({{"axis", -1}, {"block_size", 16}, {"scale_type", 17}}));
  graph.node("DequantizeLinear", {"block_scales", "s"}, {"scales"});
  graph.node("DequantizeLinear", {"codes", "scales"}, {"y"}, {{{"axis", -1}, {"block_size", 16}}});
  graph.output("y", kFloat, {"M", 32});
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.push_back(static_cast<float>(decode_e2m1(i % 16)));
  const Tensor y = session.run({{"x", floats({2, 32}, values)}}).at(0);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(y.at(i), values[i]) << i;
}

TEST(CustomOps, Mxfp8DynamicQuantizeRoundTrips) {
  Graph graph;
  graph.input("x", kFloat, {"M", 64});
  graph.node("TRT_MXFP8DynamicQuantize", {"x"}, {"codes", "scales"},
             trt({{"axis", -1}, {"block_size", 32}, {"output_dtype", 17}}));
  graph.node("TRT_MXFP8DequantizeLinear", {"codes", "scales"}, {"y"},
             trt({{"axis", -1}, {"block_size", 32}, {"output_dtype", 1}}));
  graph.output("y", kFloat, {"M", 64});
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  const Tensor x = random_floats({3, 64});
  const Tensor y = session.run({{"x", x}}).at(0);
  for (size_t i = 0; i < 3 * 64; ++i) {
    // Four significant bits of the element, or of a 2^-9 part of its block's largest.
    EXPECT_NEAR(y.at(i), x.at(i), std::max(std::abs(x.at(i)) / 16, 0.01F)) << i;
  }
}

TEST(CustomOps, Fp8QuantizeAndDequantizeRoundTrip) {
  Graph graph;
  graph.input("x", kFloat, {"M", 8}).constant("s", floats({}, {0.5F}));
  graph.node("TRT_FP8QuantizeLinear", {"x", "s"}, {"codes"}, kTrt);
  graph.node("TRT_FP8DequantizeLinear", {"codes", "s"}, {"y"}, kTrt);
  graph.output("y", kFloat, {"M", 8});
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  const std::vector<float> values = {0, 0.5F, -0.75F, 1, 7, -224, 0.03125F, 100};
  const Tensor y = session.run({{"x", floats({1, 8}, values)}}).at(0);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(y.at(i), values[i]) << i;
  EXPECT_EQ(y.at(7), 96);  // 200 lies between 192 and 208: the tie goes to the even mantissa
}

struct DequantizeCase {
  const char* op;
  Type codes, scale;
};

class Dequantize : public ::testing::TestWithParam<DequantizeCase> {};

// The runtime asks the first alternative of a name to infer for all of them.
TEST_P(Dequantize, OutputTypeFollowsTheScale) {
  const auto [op, codes, scale] = GetParam();
  const size_t code_bytes = codes == kInt4 ? 16 : 32, scale_bytes = scale == kFloat ? 4 : 2;
  Graph graph;
  graph.constant("codes", {codes, {2, 16}, std::string(code_bytes, '\0')});
  graph.constant("scale", {scale, {}, std::string(scale_bytes, 1)});
  graph.node(op, {"codes", "scale"}, {"w"}, kTrt);
  graph.node("Cast", {"w"}, {"wide"}, {{{"to", 1}}});
  graph.input("x", kFloat, {2, 16}).node("Add", {"x", "wide"}, {"y"});
  graph.output("y", kFloat, {2, 16});
  Graph typed = graph;
  typed.output("w", scale, {2, 16});
  EXPECT_EQ(Session(model(typed), {{"claim", "all"}}).output_types().at(1), scale);
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  EXPECT_EQ(session.run({{"x", filled({2, 16}, 3)}}).at(0).at(31), 3);
}

INSTANTIATE_TEST_SUITE_P(Forms, Dequantize,
                         ::testing::Values(DequantizeCase{"DequantizeLinear", kFp8, kFloat},
                                           DequantizeCase{"DequantizeLinear", kFp8, kHalf},
                                           DequantizeCase{"DequantizeLinear", kInt4, kHalf},
                                           DequantizeCase{"DequantizeLinear", kInt8, kBFloat},
                                           DequantizeCase{"TRT_FP8DequantizeLinear", kByte, kHalf},
                                           DequantizeCase{"TRT_INT8DequantizeLinear", kInt8, kHalf},
                                           DequantizeCase{"TRT_INT4DequantizeLinear", kInt4,
                                                          kBFloat}));

// torch's exporter declares FP8 codes as uint8, and a declaration that differs fails the load.
TEST(CustomOps, Fp8QuantizersGiveTheirCodesAsBytes) {
  Graph graph;
  graph.input("x", kHalf, {2, 8}).constant("s", {kHalf, {}, std::string("\0\x3c", 2)});
  graph.constant("zero", {kFp8, {1}, std::string(1, '\0')});
  graph.node("QuantizeLinear", {"x", "s", "zero"}, {"codes"}, trt({{"saturate", 1}}));
  graph.node("TRT_FP8QuantizeLinear", {"x", "s"}, {"codes2"}, kTrt);
  graph.node("DequantizeLinear", {"codes", "s"}, {"y"}, kTrt);
  graph.output("codes", kByte, {2, 8}).output("codes2", kByte, {2, 8}).output("y", kHalf, {2, 8});
  const Session session(model(graph), {{"claim", "all"}}, {.cpu_fallback = false});
  Tensor x{kHalf, {2, 8}, {}};
  for (int i = 0; i < 16; ++i) x.bytes += std::string("\0\xc0", 2);  // -2
  const std::vector<Tensor> results = session.run({{"x", x}});
  EXPECT_EQ(results.at(0).bytes, std::string(16, '\xc0'));
  EXPECT_EQ(results.at(1).bytes, results.at(0).bytes);
  EXPECT_EQ(results.at(2).bytes, x.bytes);
}

TEST(CustomOps, DynamicQuantizersDeclareTheirOutputTypes) {
  Graph graph;
  graph.input("x", kHalf, {2, 32}).constant("s", floats({}, {1}));
  graph.node("TRT_FP4DynamicQuantize", {"x", "s"}, {"codes", "scales"},
             trt({{"axis", -1}, {"block_size", 16}, {"scale_type", 17}}));
  graph.node("TRT_MXFP8DynamicQuantize", {"x"}, {"codes8", "scales8"},
             trt({{"axis", -1}, {"block_size", 32}, {"output_dtype", 17}}));
  graph.output("codes", kFp4, {2, 32}).output("scales", kFp8, {2, 2});
  graph.output("codes8", kFp8, {2, 32}).output("scales8", kByte, {2, 1});
  const Session session(model(graph), {{"claim", "all"}});
  EXPECT_EQ(session.output_types(), (std::vector<Type>{kFp4, kFp8, kFp8, kByte}));
}

}  // namespace
}  // namespace tenon::testing
