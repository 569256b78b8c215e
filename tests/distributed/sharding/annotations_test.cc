// What files say of how they are cut: read, followed, or answered with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "distributed/sharding/annotations.h"
#include "tests/distributed/sharding/annotated_model.h"
#include "tests/distributed/sharding/same_as_whole.h"

namespace tenon::testing {
namespace {

using distributed::Annotations;
using distributed::CutDims;
using distributed::read_annotations;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Annotations read(const std::string& bytes, int64_t ranks = 2) {
  return read_annotations(std::as_bytes(std::span(bytes)), ranks);
}

Annotations read_one(const Message& node, int64_t ranks = 2) {
  return read(model({node}, {{"all", ranks}}), ranks);
}

std::string reason_of(const Message& node, int64_t ranks = 2) {
  const Annotations read = read_one(node, ranks);
  return read.unfollowed.empty() ? "" : read.unfollowed[0].reason;
}

Message product(std::string_view op = "MatMul") { return node("p", op, {"x", "w"}, "y"); }

TEST(Annotations, DimsOfAProduct) {
  const Annotations all = read_one(
      with(product(), {spec("w", -1, 2, {0, 1}), spec("y", 2, 2), spec("x", 0, 0, {0, 1})}));
  ASSERT_EQ(all.nodes.size(), 1U);
  EXPECT_TRUE(all.unfollowed.empty());
  EXPECT_EQ(all.nodes[0].node, "p");
  EXPECT_THAT(all.nodes[0].weights, ElementsAre("w"));
  EXPECT_EQ(all.nodes[0].weight, CutDims{1});
  EXPECT_EQ(all.nodes[0].result, CutDims{2});
  EXPECT_EQ(all.nodes[0].left, CutDims{});
}

// However the weight is stored, 0 is what is summed over.
TEST(Annotations, StoredForms) {
  const auto weight = [](const Message& node) { return read_one(node).nodes.at(0).weight; };
  EXPECT_EQ(weight(with(product("MatMul"), {spec("w", 0, 2)})), CutDims{0});
  EXPECT_EQ(weight(with(product("Gemm"), {spec("w", 0, 2)})), CutDims{0});
  Message turned = product("Gemm");
  turned.message(5, Message().text(1, "transB").number(3, 1));
  EXPECT_EQ(weight(with(turned, {spec("w", 0, 2)})), CutDims{1});
  EXPECT_EQ(weight(with(product("MatMulNBits"), {spec("w", -3, 2)})), CutDims{1});
  EXPECT_EQ(weight(with(product("MatMulNBits"), {spec("w", 1, 2)})), CutDims{0});
  EXPECT_THAT(reason_of(with(product("MatMulNBits"), {spec("w", 2, 2)})), HasSubstr("no such dim"));
}

TEST(Annotations, WeightsBehindOtherNodes) {
  const Annotations all =
      read(model({node("dq", "DequantizeLinear", {"codes", "scales"}, "float"),
                  node("turn", "Transpose", {"float"}, "w"), with(product(), {spec("w", 1, 2)})},
                 {{"all", 2}}));
  EXPECT_THAT(all.nodes.at(0).weights, ElementsAre("w", "float", "codes"));
}

TEST(Annotations, ConfigurationsByNumberOfDevices) {
  const Message both = with(with(product(), {spec("w", 1, 2)}, "two"), {spec("w", 0, 4)}, "four");
  const std::string file = model({both}, {{"two", 2}, {"four", 4}});
  EXPECT_EQ(read(file, 2).nodes.at(0).weight, CutDims{1});
  EXPECT_EQ(read(file, 4).nodes.at(0).weight, CutDims{0});
  const Annotations three = read(file, 3);
  EXPECT_TRUE(three.nodes.empty());
  EXPECT_THAT(three.unfollowed.at(0).reason, HasSubstr("for 2 and 4 devices, not for 3 ranks"));
  EXPECT_THAT(read(model({both}, {}), 2).unfollowed.at(0).reason, HasSubstr("the file has none"));
  EXPECT_TRUE(read(model({product()}, {}), 2).unfollowed.empty());
}

TEST(Annotations, WhatIsNotDoneHasAReason) {
  EXPECT_THAT(reason_of(with(product(), {spec("w", 1, 2)}), 4), HasSubstr("cut in 2 for 4 ranks"));
  EXPECT_THAT(reason_of(with(product(), {spec("w", 1, 2, {1, 0})})), HasSubstr("in their order"));
  EXPECT_THAT(reason_of(with(product(), {spec("w", 1, 2, {0})})), HasSubstr("on 1 devices"));
  EXPECT_THAT(reason_of(with(product(), {spec("w", 0, 0, {1})})), HasSubstr("every rank needs it"));
  EXPECT_THAT(reason_of(with(product(), {spec("w", 0, -2)})), HasSubstr("cut in -2"));
  EXPECT_THAT(reason_of(with(product(), {spec("z", 0, 0)})), HasSubstr("no tensor 'z'"));
  EXPECT_THAT(reason_of(with(product(), {spec("w", 7, 2)})), HasSubstr("no such dim"));
  EXPECT_THAT(reason_of(with(product("Add"), {spec("w", 0, 2)})), HasSubstr("goes with them"));
  Message twice = spec("w", 0, 2);
  twice.message(4, Message().number(1, 1).message(2, Message().number(3, 2)));
  EXPECT_THAT(reason_of(with(product(), {twice})), HasSubstr("along 2 dims"));
  Message within;
  within.text(1, "w").message(
      4, Message().message(2, Message().number(3, 1)).message(2, Message().number(3, 2)));
  EXPECT_THAT(reason_of(with(product(), {within})), HasSubstr("within itself"));
  Message stage = product();
  stage.message(10, Message().text(1, "all").number(3, 1));
  EXPECT_THAT(reason_of(stage), HasSubstr("pipeline"));
}

TEST(Annotations, GroupsOfDevices) {
  Message shared = spec("w", 0, 0, {-1});
  shared.message(3, group(-1, {0, 1}));
  EXPECT_EQ(read_one(with(product(), {shared})).nodes.at(0).weight, CutDims{});
  Message pairs = spec("w", 1, 2, {-1, -2});
  pairs.message(3, group(-1, {0, 1})).message(3, group(-2, {2, 3}));
  EXPECT_THAT(reason_of(with(product(), {pairs}), 4), HasSubstr("cut in 2 for 4 ranks"));
  Message named = spec("w", 1, 2, {7, 1});
  named.message(3, group(7, {0}));
  EXPECT_EQ(read_one(with(product(), {named})).nodes.at(0).weight, CutDims{1});
}

// Bytes cut short or changed end in a reason, never in a crash.
TEST(Annotations, DamagedFiles) {
  const std::string file = model({with(product(), {spec("w", 1, 2, {0, 1})})}, {{"all", 2}});
  size_t refused = 0;
  const auto try_read = [&](const std::string& bytes) {
    try {
      read(bytes);
    } catch (const UserError&) {
      ++refused;
    }
  };
  for (size_t size = 0; size < file.size(); ++size) try_read(file.substr(0, size));
  EXPECT_GT(refused, file.size() / 2);
  for (size_t at = 0; at < file.size(); ++at) {
    for (const int byte : {0x00, 0x7f, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(byte);
      try_read(changed);
    }
  }
}

// The same numbers, whatever the file asks for.
struct Asked {
  std::string weight;
  std::optional<CutDims> dims;
  bool is_table = false;
};

Annotations asking(const std::vector<Asked>& all) {
  Annotations annotations;
  for (const Asked& one : all) {
    annotations.nodes.push_back({.node = one.weight + ".node",
                                 .is_table = one.is_table,
                                 .weights = {one.weight},
                                 .weight = one.dims});
  }
  return annotations;
}

Shard with_annotations(const Annotations& annotations) {
  return [annotations](ir::Graph& graph, distributed::ShardingOptions options) {
    options.annotations = annotations;
    return shard(graph, options);
  };
}

std::string answers(const ShardingReport& report) {
  std::string all;
  for (const auto& one : report.annotations) {
    all += fmt::format("{}: {}{};", one.node, one.asked, one.reason.empty() ? "" : " no");
  }
  return all;
}

const CutDims kRows{0}, kColumns{1}, kWhole{};

TEST(Annotations, GatedMlpsAreCutAsAsked) {
  const DecoderSizes sizes;
  const ir::Graph whole = DecoderGraph(sizes, {.bias = true}).gated_mlp();
  const auto expect = [&](const std::vector<Asked>& asked, const std::string& outline) {
    const Shard make = with_annotations(asking(asked));
    for (const int64_t ranks : {2, 3}) expect_same(whole, sizes, ranks, 1, make);
    const Sharded all = shard_all(whole, 2, make);
    EXPECT_EQ(outline_text(all.ranks[0].graph), outline);
    for (const auto& answer : all.reports[0].annotations) EXPECT_EQ(answer.reason, "");
    EXPECT_EQ(all.reports[0].annotations.size(), asked.size());
  };
  expect({{"gate.weight", kColumns}, {"up.weight", kColumns}, {"down.weight", kRows}},
         "ScaledDot ScaledDot Tanh Mul Mul ScaledDot AllReduce Add Add");
  expect({{"down.weight", kWhole}, {"gate.weight", kWhole}, {"up.weight", kWhole}},
         "ScaledDot ScaledDot Tanh Mul Mul ScaledDot Add");
  expect({{"down.weight", kColumns}, {"gate.weight", kWhole}, {"up.weight", kWhole}},
         "ScaledDot ScaledDot Tanh Mul Mul ScaledDot Transpose AllGather Transpose Add");
  expect({{"gate.weight", kRows}, {"up.weight", kRows}},
         "Slice ScaledDot AllReduce ScaledDot AllReduce Tanh Mul Mul ScaledDot Transpose "
         "AllGather Transpose Add");
}

TEST(Annotations, DecodersAreCutAsAsked) {
  const DecoderSizes sizes{.hidden = 128, .q_heads = 4, .kv_heads = 2, .head_size = 32};
  const std::vector<std::string> names{"q", "k", "v", "o", "gate", "up", "down", "lm_head"};
  std::mt19937 random(3);
  for (unsigned seed = 0; seed < 24; ++seed) {
    const WeightFormat format =
        std::vector{WeightFormat::kPlain, WeightFormat::kNvfp4, WeightFormat::kInt4Bits}[seed % 3];
    const ir::Graph whole = DecoderGraph(sizes, {.weights = format}, seed).decoder();
    std::vector<Asked> asked;
    for (const std::string& name : names) {
      const auto drawn = random() % 4;
      if (drawn == 3) continue;
      asked.push_back({name + ".weight", std::vector{kRows, kColumns, kWhole}[drawn]});
    }
    asked.push_back({"table", random() % 2 == 0 ? kRows : kWhole, true});
    const int64_t ranks = seed % 2 == 0 ? 2 : 4;
    const Shard make = with_annotations(asking(asked));
    expect_same(whole, sizes, ranks, seed, make);
    const ShardingReport report = shard_all(whole, ranks, make).reports[0];
    EXPECT_EQ(report.annotations.size(), asked.size());
    for (const auto& one : report.annotations) EXPECT_EQ(one.reason, "") << report.text();
    if (::testing::Test::HasFailure()) return;
  }
}

// A small weight that would stay whole is cut where the file asks for it.
TEST(Annotations, SmallWeights) {
  const DecoderSizes sizes;
  ir::Graph graph = DecoderGraph(sizes, {}).last_product();
  distributed::ShardingOptions options{0, 2};
  EXPECT_TRUE(shard(graph, options).exchanges.empty());
  options.annotations = asking({{"lm_head.weight", kColumns}});
  const ShardingReport report = shard(graph, options);
  EXPECT_EQ(report.exchanges.size(), 1U) << report.text();
}

TEST(Annotations, WhatCannotBeDone) {
  const DecoderSizes sizes{.vocabulary = 3};
  const ir::Graph whole = DecoderGraph(sizes, {}).last_product();
  Annotations asked = asking({{"lm_head.weight", kColumns}, {"nobody", kRows}});
  asked.nodes.push_back({.node = "speechless", .weights = {"lm_head.weight"}, .result = CutDims{}});
  asked.nodes.push_back({.node = "tokens", .weights = {"lm_head.weight"}, .result = CutDims{1}});
  asked.nodes.push_back(
      {.node = "torn", .weights = {"lm_head.weight"}, .left = CutDims{2}, .weight = kColumns});
  ir::Graph graph = whole;
  const ShardingReport report =
      shard(graph, {.ranks = 4, .least_gathered_bytes = 0, .annotations = asked});
  const std::string text = report.text();
  EXPECT_THAT(text, HasSubstr("'lm_head.weight.node': not followed: it has fewer columns"));
  EXPECT_THAT(text, HasSubstr("'nobody.node': not followed: nothing in this graph reads 'nobody'"));
  EXPECT_THAT(text, HasSubstr("'speechless': not followed: it does not say how"));
  EXPECT_THAT(text, HasSubstr("'tokens': not followed: a result is cut by columns"));
  EXPECT_THAT(text, HasSubstr("'torn': not followed: its specs do not fit together"));
}

// Two nodes of one weight that ask for different things.
TEST(Annotations, FirstWord) {
  ir::Graph graph = DecoderGraph({}, {}).last_product();
  Annotations asked = asking({{"lm_head.weight", kColumns}, {"lm_head.weight", kRows}});
  asked.nodes[1].node = "second";
  const ShardingReport report =
      shard(graph, {.ranks = 2, .least_gathered_bytes = 0, .annotations = asked});
  EXPECT_EQ(answers(report), "second:  no;lm_head.weight.node: columns;");
}

}  // namespace
}  // namespace tenon::testing
