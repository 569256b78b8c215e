// Models that are broken or hostile: a clear error, or a node left to others with a reason; never a
// crash, a hang, a wrong number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const Options kClaimAll = {{"claim", "all"}};

// One 4-bit weight [8,64] with a scale of any shape and type, and a product.
std::string scaled_model(const Tensor& scale, int64_t block = 16, int axis = -1) {
  Graph graph;
  graph.input("x", kFloat, {"M", 64});
  graph.constant("codes", {kFp4, {8, 64}, std::string(8 * 64 / 2, 0x22)});  // every code is 1.0
  graph.constant("scale", scale);
  graph.node("DequantizeLinear", {"codes", "scale"}, {"decoded"},
             {{{"axis", axis}, {"block_size", block}}});
  graph.node("Transpose", {"decoded"}, {"w"}, {{{"perm", std::vector<int64_t>{1, 0}}}});
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", 8});
  return model(graph);
}

Tensor run_scaled(const Tensor& scale) {
  return Session(scaled_model(scale), kClaimAll, {.cpu_fallback = false})
      .run({{"x", filled({1, 64}, 1)}})
      .at(0);
}

TEST(BadInput, TruncatedModelsAreErrors) {
  const std::string bytes = scaled_model(filled({8, 4}, 1));
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{10}, size_t{100}, bytes.size() / 2, bytes.size() - 5}) {
    SCOPED_TRACE(size);
    error_of([&] { Session(bytes.substr(0, size)); });
  }
}

TEST(BadInput, CorruptModelsNeverCrash) {
  const std::string bytes = scaled_model(random_floats({8, 4}));
  std::mt19937 random(0);
  int loaded = 0;
  for (int round = 0; round < 300; ++round) {
    std::string broken = bytes;
    for (int i = 0; i < 3; ++i) broken[random() % broken.size()] = static_cast<char>(random());
    try {
      const Session session(broken, kClaimAll);
      ++loaded;
      session.run({{"x", filled({2, 64}, 1)}});
    } catch (const std::exception& error) {
      EXPECT_STRNE(error.what(), "");
    }
  }
  EXPECT_GT(loaded, 0) << "no mutant reached the plugin";
}

struct WrongScale {
  const char* what;
  Tensor scale;
  int64_t block = 16;
  int axis = -1;
};

class WrongScales : public ::testing::TestWithParam<WrongScale> {};

// A stock runtime has no kernel for these types either: the session must fail, and say where.
TEST_P(WrongScales, AreRefusedByNameOfTheNode) {
  const WrongScale& wrong = GetParam();
  const std::string message = error_of([&] {
    Session(scaled_model(wrong.scale, wrong.block, wrong.axis), kClaimAll)
        .run({{"x", filled({2, 64}, 1)}});
  });
  EXPECT_THAT(message, AnyOf(HasSubstr("decoded"), HasSubstr("DequantizeLinear")));
}

INSTANTIATE_TEST_SUITE_P(
    BadInput, WrongScales,
    ::testing::Values(WrongScale{"TooFewBlocks", filled({8, 3}, 1)},
                      WrongScale{"TooManyBlocks", filled({8, 5}, 1)},
                      WrongScale{"OtherRows", filled({7, 4}, 1)},
                      WrongScale{"OtherRank", filled({4}, 1)},
                      WrongScale{"Empty", filled({0, 4}, 1)},
                      WrongScale{"BlockDoesNotDivide", filled({8, 4}, 1), 24},
                      WrongScale{"NegativeBlock", filled({8, 4}, 1), -16},
                      WrongScale{"HugeBlock", filled({8, 4}, 1), int64_t{1} << 62},
                      WrongScale{"AxisOutOfRange", filled({8, 4}, 1), 16, 7},
                      WrongScale{"IntegerScale", int64s({8, 4}, std::vector<int64_t>(32, 1))}),
    [](const auto& info) { return info.param.what; });

TEST(BadInput, ARaggedLastBlockIsRightOrRefused) {
  // ONNX lets the last block be short: ceil(64 / 24) = 3 scales.
  Tensor scale = filled({8, 3}, 1);
  reinterpret_cast<float*>(scale.bytes.data())[2] = 2;  // row 0, the last 16 columns
  try {
    const Session session(scaled_model(scale, 24), kClaimAll);
    const Tensor y = session.run({{"x", filled({1, 64}, 1)}}).at(0);
    EXPECT_EQ(y.at(0), 80);
    EXPECT_EQ(y.at(1), 64);
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), AnyOf(HasSubstr("decoded"), HasSubstr("DequantizeLinear")));
  }
}

TEST(BadInput, NanAndInfiniteScalesSpreadAsArithmeticSays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Tensor scale = filled({8, 4}, 0.5F);
  auto* scales = reinterpret_cast<float*>(scale.bytes.data());
  scales[1 * 4 + 2] = nan;
  scales[2 * 4 + 0] = inf;
  scales[3 * 4 + 3] = -inf;
  scales[4 * 4 + 1] = 0;
  scales[5 * 4 + 0] = inf, scales[5 * 4 + 1] = -inf;
  const Tensor y = run_scaled(scale);
  EXPECT_EQ(y.at(0), 32);
  EXPECT_TRUE(std::isnan(y.at(1)));
  EXPECT_EQ(y.at(2), inf);
  EXPECT_EQ(y.at(3), -inf);
  EXPECT_EQ(y.at(4), 24);
  EXPECT_TRUE(std::isnan(y.at(5)));
  EXPECT_EQ(y.at(6), 32);
}

// Infinity times a code of zero is NaN, and infinities of both signs add up to NaN: a kernel that
// scales a block's sum must not say infinity.
TEST(BadInput, InfiniteScalesMeetZerosAndSigns) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const char codes : {'\x20', '\xa4'}) {  // 0 and 1; 2 and -1
    Graph graph;
    graph.input("x", kFloat, {"M", 32});
    graph.constant("codes", {kFp4, {2, 32}, std::string(32, codes)});
    graph.constant("scale", floats({2, 2}, {inf, 1, 1, 1}));
    graph.node("DequantizeLinear", {"codes", "scale"}, {"decoded"},
               {{{"axis", -1}, {"block_size", 16}}});
    graph.node("Transpose", {"decoded"}, {"w"}, {{{"perm", std::vector<int64_t>{1, 0}}}});
    graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", 2});
    const Session session(model(graph), kClaimAll, {.cpu_fallback = false});
    for (const int64_t rows : {1, 3}) {
      const Tensor y = session.run({{"x", filled({rows, 32}, 1)}}).at(0);
      EXPECT_TRUE(std::isnan(y.at(0))) << y.at(0) << ", " << rows << " rows";
      EXPECT_EQ(y.at(1), 16);
    }
  }
}

TEST(BadInput, NanBlockScalesOfNvfp4GiveNan) {
  Nvfp4Weight weight(4, 32);
  weight.scales.bytes[2] = 0x7f;  // row 1, first block
  Graph graph;
  graph.input("x", kFloat, {"M", 32});
  weight.add_to(graph, "w");
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", 4});
  const Session session(model(graph), kClaimAll, {.cpu_fallback = false});
  const Tensor x = random_floats({2, 32});
  const Tensor y = session.run({{"x", x}}).at(0);
  const Product expected = multiply(x, weight);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::isnan(y.at(i)), i % 4 == 1) << i;
    if (i % 4 == 1) continue;
    EXPECT_NEAR(y.at(i), expected.values[i], 1e-5 * expected.magnitudes[i]);
  }
}

TEST(BadInput, TinyAndHugeScalesDoNotTurnIntoNan) {
  Tensor scale = filled({8, 4}, 1e-38F);
  reinterpret_cast<float*>(scale.bytes.data())[0] = 3e37F;
  const Tensor y = run_scaled(scale);
  EXPECT_FLOAT_EQ(y.at(0), 16 * 3e37F);  // beyond float32: infinite
  EXPECT_NEAR(y.at(1), 64e-38, 1e-40);
}

TEST(BadInput, E8m0CodesCoverTheWholeRange) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "ONNX Runtime loads e8m0 scales from 1.27 on";
  Graph graph;
  graph.input("x", kFloat, {256, 32});
  graph.constant("codes", {kFp8, {256, 32}, std::string(256 * 32, 0x38)});
  Tensor scale{kE8M0, {256, 1}, {}};
  for (int code = 0; code < 256; ++code) scale.bytes += static_cast<char>(code);
  graph.constant("scale", scale);
  graph.node("DequantizeLinear", {"codes", "scale"}, {"w"},
             {{{"axis", -1}, {"block_size", 32}, {"output_dtype", 1}}});
  graph.node("Mul", {"x", "w"}, {"y"}).output("y", kFloat, {256, 32});
  const Session session(model(graph, 24, 11), kClaimAll, {.cpu_fallback = false});
  const Tensor y = session.run({{"x", filled({256, 32}, 1)}}).at(0);
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(y.at(static_cast<size_t>(code) * 32 + 31), std::ldexp(1.0F, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(y.at(255 * 32)));
}

TEST(BadInput, AbsurdDimensionsAreErrors) {
  if (kAddressSanitizer) GTEST_SKIP() << "it ends the process where the runtime's allocator fails";
  Graph graph;
  graph.input("x", kFloat, {1}).constant("size", int64s({2}, {int64_t{1} << 40, 1 << 20}));
  graph.node("Expand", {"x", "size"}, {"big"}).node("Neg", {"big"}, {"y"});
  graph.output("y", kFloat, {"A", "B"});
  error_of([&] { Session(model(graph), kClaimAll).run({{"x", filled({1}, 1)}}); });
}

TEST(BadInput, DimensionsWhoseProductOverflowsAreErrors) {
  if (kAddressSanitizer) GTEST_SKIP() << "it ends the process where the runtime's allocator fails";
  Graph graph;
  graph.input("x", kFloat, {1}).input("size", kInt64, {3});
  graph.node("Expand", {"x", "size"}, {"big"}).node("Neg", {"big"}, {"n"});
  graph.node("Abs", {"n"}, {"y"}).output("y", kFloat, {"A", "B", "C"});
  const Session session(model(graph), kClaimAll);
  const int64_t huge = int64_t{1} << 32;
  error_of([&] {
    session.run({{"x", filled({1}, 1)}, {"size", int64s({3}, {huge, huge, huge})}});
  });
  const Tensor y = session.run({{"x", filled({1}, 1)}, {"size", int64s({3}, {1, 2, 3})}}).at(0);
  EXPECT_EQ(y.elements(), 6);
}

TEST(BadInput, DeclaredDimensionsThatDisagreeWithTheDataAreErrors) {
  Tensor lying = filled({8, 4}, 1);
  lying.dims = {int64_t{1} << 40, int64_t{1} << 40};
  error_of([&] { Session(scaled_model(lying), kClaimAll); });
}

TEST(BadInput, NegativeDimensionsAreErrors) {
  Graph graph;
  graph.input("x", kFloat, {4}).constant("shape", int64s({2}, {-3, 2}));
  graph.node("Reshape", {"x", "shape"}, {"r"}).node("Neg", {"r"}, {"y"});
  graph.output("y", kFloat, {"A", "B"});
  error_of([&] { Session(model(graph), kClaimAll).run({{"x", filled({4}, 1)}}); });
}

TEST(BadInput, IndicesOutOfRangeAreErrors) {
  Graph graph;
  graph.input("ids", kInt64, {"M"}).constant("table", random_floats({10, 4}));
  graph.node("Gather", {"table", "ids"}, {"rows"}).node("Neg", {"rows"}, {"y"});
  graph.output("y", kFloat, {"M", 4});
  const Session session(model(graph), kClaimAll);
  for (const int64_t id : {int64_t{10}, int64_t{-11}, int64_t{1} << 40}) {
    SCOPED_TRACE(id);
    const std::string error = error_of([&] { session.run({{"ids", int64s({2}, {0, id})}}); });
    EXPECT_THAT(error, HasSubstr("node 'rows'"));
  }
  EXPECT_EQ(session.run({{"ids", int64s({2}, {9, -10})}}).at(0).elements(), 8);
}

TEST(BadInput, ACycleIsAnError) {
  Graph graph;
  graph.input("x", kFloat, {4}).node("Add", {"x", "b"}, {"a"}).node("Neg", {"a"}, {"b"});
  graph.output("b", kFloat, {4});
  error_of([&] { Session(model(graph), kClaimAll); });
}

TEST(BadInput, NamesOfAnyBytesAreHarmless) {
  const TemporaryFolder folder;
  const std::string name = "n\xff\n\"\\/../x";
  Graph graph(name);
  graph.input("x", kFloat, {"M"}).node("Neg", {"x"}, {"h"}, {.name = name});
  graph.node("Relu", {"h"}, {"y"}).output("y", kFloat, {"M"});
  const Options options = {{"claim", "all"},
                           {"report_file", folder.path("report.json")},
                           {"dump_dir", folder.path("dump")}};
  const Session session(model(graph), options);
  EXPECT_EQ(session.run({{"x", filled({2}, -3)}}).at(0).at(1), 3);
  EXPECT_THAT(read_file(folder.path("report.json")), HasSubstr("\"claimed\": 2"));
}

}  // namespace
}  // namespace tenon::testing
