// What is claimed and what comes out: products against float64, shapes, partitions, defaults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Settings kTenonAlone{.cpu_fallback = false};

// y = x * W, NVFP4.
std::string product_model(const Nvfp4Weight& weight, bool weights_as_inputs = false) {
  Graph graph;
  graph.input("x", kFloat, {"M", weight.k});
  weight.add_to(graph, "w", weights_as_inputs);
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", weight.n});
  return model(graph);
}

TEST(Claims, StockRuntimeRefusesNvfp4) {
  const Nvfp4Weight weight(32, 64);
  const std::string bytes = product_model(weight);
  Ort::Env& environment = env();
  error_of([&] { Ort::Session(environment, bytes.data(), bytes.size(), Ort::SessionOptions{}); });
}

TEST(Claims, Nvfp4ProductAgreesWithFloat64) {
  const Nvfp4Weight weight(48, 128);
  const Session session(product_model(weight), {}, kTenonAlone);
  EXPECT_EQ(session.partitions().size(), 1U);
  EXPECT_EQ(session.claimed_nodes(), 4U);
  for (const int64_t rows : {1, 2, 7, 33}) {
    const Tensor x = random_floats({rows, weight.k}, static_cast<unsigned>(rows));
    const Tensor y = session.run({{"x", x}}).at(0);
    EXPECT_THAT(y.dims, ElementsAre(rows, weight.n));
    expect_product(y, multiply(x, weight), weight.k);
  }
}

TEST(Claims, OddSizesAgreeWithFloat64) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 16}, {5, 48}, {67, 176}, {257, 16}}) {
    const Nvfp4Weight weight(n, k, static_cast<unsigned>(n));
    const Session session(product_model(weight), {{"claim", "all"}}, kTenonAlone);
    const Tensor x = random_floats({3, k});
    SCOPED_TRACE(n);
    expect_product(session.run({{"x", x}}).at(0), multiply(x, weight), k);
  }
}

TEST(Claims, BatchesOfAnyRankAgreeWithFloat64) {
  const Nvfp4Weight weight(24, 64);
  Graph graph;
  graph.input("x", kFloat, {"A", "B", 64});
  weight.add_to(graph, "w");
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"A", "B", 24});
  const Session session(model(graph), {}, kTenonAlone);
  const Tensor x = random_floats({2, 5, 64});
  const Tensor y = session.run({{"x", x}}).at(0);
  EXPECT_THAT(y.dims, ElementsAre(2, 5, 24));
  expect_product(y, multiply(x, weight), 64);
}

// Two products with an exact Gelu and a bias between them.
std::string mlp_model(const Nvfp4Weight& up, const Nvfp4Weight& down, const Tensor& bias) {
  Graph graph;
  graph.input("x", kFloat, {"M", up.k});
  up.add_to(graph, "up");
  down.add_to(graph, "down");
  graph.constant("bias", bias);
  graph.node("MatMul", {"x", "up"}, {"h"}).node("Add", {"h", "bias"}, {"biased"});
  graph.node("Gelu", {"biased"}, {"activated"});
  graph.node("MatMul", {"activated", "down"}, {"y"}).output("y", kFloat, {"M", down.n});
  return model(graph);
}

TEST(Claims, AnMlpIsOnePartition) {
  const Nvfp4Weight up(96, 32, 1), down(32, 96, 2);
  const Tensor bias = random_floats({96}, 3);
  const Session session(mlp_model(up, down, bias), {}, kTenonAlone);
  ASSERT_EQ(session.partitions().size(), 1U);

  const Tensor x = random_floats({5, 32});
  std::vector<float> hidden;
  const Product first = multiply(x, up);
  for (size_t i = 0; i < first.values.size(); ++i) {
    const double value = first.values[i] + bias.at(i % 96);
    hidden.push_back(static_cast<float>(value * 0.5 * (1 + std::erf(value / std::sqrt(2.0)))));
  }
  const Product expected = multiply(floats({5, 96}, hidden), down);
  const Tensor y = session.run({{"x", x}}).at(0);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    EXPECT_NEAR(y.at(i), expected.values[i], 1e-5 * expected.magnitudes[i]) << i;
  }
}

TEST(Claims, PartitionsFormAroundAnUnsupportedOp) {
  const Nvfp4Weight first(32, 64, 1), second(16, 32, 2);
  Graph graph;
  graph.input("x", kFloat, {"M", 64});
  first.add_to(graph, "w1");
  second.add_to(graph, "w2");
  graph.node("MatMul", {"x", "w1"}, {"h"});
  graph.node("CumSum", {"h", "axis"}, {"sums"}).constant("axis", int64s({}, {1}));
  graph.node("MatMul", {"sums", "w2"}, {"y"});
  graph.output("y", kFloat, {"M", 16});
  const Session session(model(graph), {{"exclude_ops", "CumSum"}});
  EXPECT_EQ(session.partitions().size(), 2U);

  const Tensor x = random_floats({3, 64});
  const Product before = multiply(x, first);
  std::vector<float> sums;
  for (size_t i = 0; i < before.values.size(); ++i) {
    sums.push_back(static_cast<float>(before.values[i]) + (i % 32 == 0 ? 0 : sums.back()));
  }
  const Product expected = multiply(floats({3, 32}, sums), second);
  const Tensor y = session.run({{"x", x}}).at(0);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    EXPECT_NEAR(y.at(i), expected.values[i], 1e-4 * expected.magnitudes[i]) << i;
  }
}

TEST(Defaults, WeightsListedAsInputsKeepTheirDefault) {
  const Nvfp4Weight weight(32, 64);
  const Session session(product_model(weight, true), {}, kTenonAlone);
  EXPECT_EQ(session.claimed_nodes(), 4U);
  const Tensor x = random_floats({2, 64});
  for (int round = 0; round < 3; ++round) {
    expect_product(session.run({{"x", x}}).at(0), multiply(x, weight), 64);
  }
}

TEST(Defaults, FeedingTheDefaultItselfIsFine) {
  const Nvfp4Weight weight(32, 64);
  const Session session(product_model(weight, true), {}, kTenonAlone);
  const Tensor x = random_floats({2, 64});
  expect_product(session.run({{"x", x}, {"w_global", weight.global_scale}}).at(0),
                 multiply(x, weight), 64);
}

TEST(Defaults, FeedingAnotherValueIsRefusedByNameAndTheSessionLives) {
  const Nvfp4Weight weight(32, 64);
  const Session session(product_model(weight, true), {}, kTenonAlone);
  const Tensor x = random_floats({2, 64});
  const std::string message = error_of([&] {
    session.run({{"x", x}, {"w_global", floats({1}, {2})}});
  });
  EXPECT_THAT(message, HasSubstr("w_global"));
  EXPECT_THAT(message, HasSubstr("default"));
  expect_product(session.run({{"x", x}}).at(0), multiply(x, weight), 64);
}

TEST(Defaults, WhatTheCallerChangesInPlaceIsRefusedAtTheSameAddress) {
  const Nvfp4Weight weight(32, 64);
  const Session session(product_model(weight, true), {}, kTenonAlone);
  const Tensor x = random_floats({2, 64});
  std::map<std::string, Tensor> feeds = {{"x", x}, {"w_global", weight.global_scale}};
  for (int round = 0; round < 2; ++round) {
    expect_product(session.run(feeds).at(0), multiply(x, weight), 64);
  }
  Tensor& fed = feeds.at("w_global");
  const std::string before = fed.bytes;
  fed.bytes[0] = static_cast<char>(fed.bytes[0] ^ 1);
  EXPECT_THAT(error_of([&] { session.run(feeds); }), HasSubstr("w_global"));
  fed.bytes[0] = before[0];
  expect_product(session.run(feeds).at(0), multiply(x, weight), 64);
}

TEST(Defaults, ALargeOneIsComparedToItsLastByte) {
  constexpr int64_t kSize = 1100;  // 4.6 MiB: in several chunks, the last one not whole
  Tensor weight = random_floats({kSize, kSize});
  Graph graph;
  graph.input("x", kFloat, {"M", kSize}).default_input("w", weight);
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", kSize});
  const Session session(model(graph), {{"claim", "all"}}, kTenonAlone);
  const Tensor x = random_floats({1, kSize});
  std::map<std::string, Tensor> feeds = {{"x", x}, {"w", weight}};
  session.run(feeds);
  for (const size_t place : {size_t{0}, size_t{2} << 20, weight.bytes.size() - 1}) {
    char& byte = feeds.at("w").bytes[place];
    byte = static_cast<char>(byte ^ 1);
    EXPECT_THAT(error_of([&] { session.run(feeds); }), HasSubstr("'w'")) << place;
    byte = static_cast<char>(byte ^ 1);
  }
  EXPECT_EQ(session.run(feeds).at(0).bytes, session.run({{"x", x}}).at(0).bytes);
}

struct TwoDims {
  const char *first, *second;  // "": unnamed
  const char *x = "x", *z = "z";
};

// Runs Relu on two inputs whose only dim is declared so, with sizes 2 and 3.
std::vector<Tensor> run_two(const TwoDims& dims) {
  Graph graph;
  graph.input(dims.x, kFloat, {dims.first}).input(dims.z, kFloat, {dims.second});
  graph.node("Relu", {dims.x}, {"y"}).output("y", kFloat, {dims.first});
  graph.node("Relu", {dims.z}, {"w"}).output("w", kFloat, {dims.second});
  const Session session(model(graph), {{"claim", "all"}}, kTenonAlone);
  return session.run({{dims.x, filled({2}, 1)}, {dims.z, filled({3}, 2)}});
}

TEST(DimNames, DifferentNamesAreDifferentSizes) {
  for (const TwoDims& dims : {TwoDims{"a-b", "a b"},
                              {"seq.1", "seq_1"},
                              {"1", "d_1"},
                              {"a%20", "a "},
                              {"x:0", "", "x"},
                              {"x_0", "", "z", "x"},
                              {"", "", "input.1", "input_1"},
                              {"n\n", "n\t"},
                              {"product", "max"},
                              {"?", "?"},  // what Paddle's exporter writes for any size
                              {"\xc3\xa4", "\xc3\xb6"}}) {
    const std::vector<Tensor> results = run_two(dims);
    EXPECT_THAT(results.at(0).dims, ElementsAre(2));
    EXPECT_THAT(results.at(1).dims, ElementsAre(3));
    EXPECT_EQ(results.at(1).at(2), 2);
  }
}

TEST(DimNames, OneNameWithTwoSizesIsAnErrorThatTellsBoth) {
  EXPECT_THAT(error_of([] {
                run_two({"n", "n"});
              }),
              AllOf(HasSubstr("[n]"), HasSubstr("[3]"), HasSubstr("[2]")));
}

TEST(Shapes, ZeroRowsGiveZeroRows) {
  const Nvfp4Weight weight(32, 64);
  const Session session(product_model(weight), {}, kTenonAlone);
  for (const int64_t rows : {0, 2, 0}) {
    const Tensor y = session.run({{"x", random_floats({rows, 64})}}).at(0);
    EXPECT_THAT(y.dims, ElementsAre(rows, 32));
  }
}

TEST(Shapes, ReducingNothingGivesTheNeutralElement) {
  Graph graph;
  graph.input("x", kFloat, {"A", "B"}).constant("axes", int64s({1}, {1}));
  graph.node("ReduceSum", {"x", "axes"}, {"sum"}, {{{"keepdims", 0}}});
  graph.node("Softmax", {"x"}, {"soft"});
  graph.output("sum", kFloat, {"A"}).output("soft", kFloat, {"A", "B"});
  const Session session(model(graph), {{"claim", "all"}});
  EXPECT_EQ(session.claimed_nodes(), 2U);
  for (const std::vector<int64_t>& dims :
       std::vector<std::vector<int64_t>>{{3, 0}, {0, 3}, {0, 0}}) {
    const std::vector<Tensor> results = session.run({{"x", filled(dims, 1)}});
    EXPECT_EQ(results[0].dims, std::vector<int64_t>{dims[0]});
    for (int64_t i = 0; i < dims[0]; ++i) EXPECT_EQ(results[0].at(static_cast<size_t>(i)), 0);
    EXPECT_EQ(results[1].dims, dims);
  }
}

TEST(Shapes, ChangeFromRunToRun) {
  Graph graph;
  graph.input("x", kFloat, {"A", "B"}).input("y", kFloat, {"B"});
  graph.node("Mul", {"x", "y"}, {"p"}).node("Sigmoid", {"p"}, {"s"});
  graph.node("Transpose", {"s"}, {"z"}).output("z", kFloat, {"B", "A"});
  const Session session(model(graph), {{"claim", "all"}}, kTenonAlone);
  for (const auto& [a, b] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {64, 33}, {2, 1}, {3, 7}}) {
    const Tensor x = random_floats({a, b}, 1), y = random_floats({b}, 2);
    const Tensor z = session.run({{"x", x}, {"y", y}}).at(0);
    ASSERT_THAT(z.dims, ElementsAre(b, a));
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t j = 0; j < b; ++j) {
        const double product =
            double{x.at(static_cast<size_t>(i * b + j))} * y.at(static_cast<size_t>(j));
        EXPECT_NEAR(z.at(static_cast<size_t>(j * a + i)), 1 / (1 + std::exp(-product)), 1e-6);
      }
    }
  }
}

TEST(Shapes, AnInputThatContradictsTheGraphIsAnError) {
  Graph graph;
  graph.input("x", kFloat, {"A", "B"}).input("y", kFloat, {"A", "B"});
  graph.node("Add", {"x", "y"}, {"z"}).node("Relu", {"z"}, {"r"});
  graph.output("r", kFloat, {"A", "B"});
  const Session session(model(graph), {{"claim", "all"}}, kTenonAlone);
  error_of([&] { session.run({{"x", filled({2, 3}, 1)}, {"y", filled({2, 4}, 1)}}); });
  EXPECT_EQ(session.run({{"x", filled({2, 3}, 1)}, {"y", filled({2, 3}, 1)}}).at(0).at(0), 2);
}

std::map<std::string, int> claimed_per_graph(const std::string& report_file) {
  std::map<std::string, int> claimed;
  const auto report = nlohmann::json::parse(read_file(report_file));
  for (const auto& graph : report["graphs"]) {
    claimed[graph["name"]] = graph["claimed"];
  }
  return claimed;
}

// cond ? max(x * W, 0) : -(x * W), with W from the outer graph.
TEST(ControlFlow, BodiesThatReadOuterValuesRun) {
  const Nvfp4Weight weight(16, 32);
  Graph yes("yes"), no("no");
  yes.node("MatMul", {"x", "w"}, {"y_yes"}).node("Relu", {"y_yes"}, {"r_yes"});
  yes.output("r_yes", kFloat, {"M", 16});
  no.node("MatMul", {"x", "w"}, {"y_no"}).node("Neg", {"y_no"}, {"r_no"});
  no.output("r_no", kFloat, {"M", 16});
  Graph graph;
  graph.input("x", kFloat, {"M", 32}).input("cond", kBool, {});
  weight.add_to(graph, "w");
  graph.node("If", {"cond"}, {"r"}, {{{"then_branch", &yes}, {"else_branch", &no}}});
  graph.output("r", kFloat, {"M", 16});
  const TemporaryFolder folder;
  const Session session(model(graph),
                        {{"claim", "all"}, {"report_file", folder.path("report.json")}});
  // The weight's nodes in the main graph, two nodes in each body.
  EXPECT_EQ(claimed_per_graph(folder.path("report.json")),
            (std::map<std::string, int>{{"main", 3}, {"yes", 2}, {"no", 2}}));

  const Tensor x = random_floats({3, 32});
  const Product expected = multiply(x, weight);
  const Tensor taken = session.run({{"x", x}, {"cond", bools({}, {true})}}).at(0);
  const Tensor other = session.run({{"x", x}, {"cond", bools({}, {false})}}).at(0);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double tolerance = 1e-5 * expected.magnitudes[i];
    EXPECT_NEAR(taken.at(i), std::max(0.0, expected.values[i]), tolerance);
    EXPECT_NEAR(other.at(i), -expected.values[i], tolerance);
  }
}

TEST(ControlFlow, ALoopBodyIsClaimedAndCarriesItsState) {
  Graph body("body");
  body.input("i", kInt64, {}).input("go", kBool, {}).input("state", kFloat, {4});
  body.node("Identity", {"go"}, {"go_on"});
  body.node("Mul", {"state", "factor"}, {"scaled"}).node("Add", {"scaled", "one"}, {"next"});
  body.constant("one", filled({}, 1));
  body.output("go_on", kBool, {}).output("next", kFloat, {4});
  Graph graph;
  graph.input("start", kFloat, {4}).input("factor", kFloat, {}).input("trips", kInt64, {});
  graph.node("Loop", {"trips", "", "start"}, {"end"}, {{{"body", &body}}});
  graph.output("end", kFloat, {4});
  const TemporaryFolder folder;
  const Session session(model(graph),
                        {{"claim", "all"}, {"report_file", folder.path("report.json")}});
  EXPECT_GE(claimed_per_graph(folder.path("report.json")).at("body"), 2);
  const Tensor end =
      session
          .run({{"start", filled({4}, 1)}, {"factor", filled({}, 2)}, {"trips", int64s({}, {5})}})
          .at(0);
  EXPECT_EQ(end.at(3), 63);  // 1 -> 3 -> 7 -> 15 -> 31 -> 63
}

// An MLP of plain floats, with a chain of pointwise ops behind each product.
size_t claimed_of_plain_mlp(int64_t width, const std::string& claim) {
  Graph graph;
  graph.input("x", kFloat, {"M", width});
  std::string from = "x";
  for (const std::string layer : {"1", "2"}) {
    graph.constant("w" + layer, random_floats({width, width}));
    graph.node("MatMul", {from, "w" + layer}, {"m" + layer});
    graph.node("Sigmoid", {"m" + layer}, {"s" + layer});
    graph.node("Mul", {"m" + layer, "s" + layer}, {"h" + layer});
    from = "h" + layer;
  }
  graph.output(from, kFloat, {"M", width});
  const Session session(model(graph), {{"claim", claim}});
  return session.claimed_nodes();
}

// What is around them saves more than small products cost, and less than large ones do.
TEST(Claims, PlainProductsAreOursOnTheHostWhereWhatIsAroundThemPays) {
  EXPECT_EQ(claimed_of_plain_mlp(64, "gainful"), 6U);
  EXPECT_EQ(claimed_of_plain_mlp(512, "gainful"), 0U);
  EXPECT_EQ(claimed_of_plain_mlp(512, "all"), 6U);
}

TEST(Claims, StringsAreLeftToOthersWithAReason) {
  Graph graph;
  graph.input("x", kFloat, {"M"}).node("Cast", {"x"}, {"text"}, {{{"to", int64_t{kString}}}});
  graph.node("Cast", {"text"}, {"y"}, {{{"to", int64_t{kFloat}}}}).output("y", kFloat, {"M"});
  const Session session(model(graph), {{"claim", "all"}});
  EXPECT_EQ(session.claimed_nodes(), 0U);
  EXPECT_EQ(session.run({{"x", filled({2}, 1.5F)}}).at(0).at(1), 1.5F);
}

}  // namespace
}  // namespace tenon::testing
