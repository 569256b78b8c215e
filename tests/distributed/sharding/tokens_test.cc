// Ranks divide tokens between sums and products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/distributed/sharding/same_as_whole.h"

namespace tenon::testing {
namespace {

using ::testing::HasSubstr;

ShardingReport shard_tokens(ir::Graph& graph, distributed::ShardingOptions options) {
  options.least_scattered_bytes = 0;
  return shard(graph, options);
}

ShardingReport fuse_tokens(ir::Graph& graph, distributed::ShardingOptions options) {
  options.least_scattered_bytes = 0;
  return fuse_share(graph, options);
}

DecoderForm prompt(int64_t tokens, WeightFormat weights = WeightFormat::kPlain) {
  DecoderForm form{.weights = weights};
  form.batch = 1;
  form.tokens = tokens;
  return form;
}

int64_t count_exchanges(const ShardingReport& report, const std::string& op) {
  return std::ranges::count(report.exchanges, op, &distributed::Exchange::op);
}

TEST(Tokens, EveryResidualAndNorm) {
  const DecoderSizes sizes;
  for (const int64_t tokens : {8, 9, 13}) {
    const ir::Graph whole = DecoderGraph(sizes, prompt(tokens)).decoder();
    for (const int64_t ranks : {2, 3, 4}) expect_same(whole, sizes, ranks, 1, shard_tokens);
  }
  const ir::Graph whole = DecoderGraph(sizes, prompt(8)).decoder();
  const Sharded all = shard_all(whole, 2, shard_tokens);
  const ShardingReport& report = all.reports[1];
  EXPECT_EQ(count_exchanges(report, "AllReduce"), 0) << report.text();
  EXPECT_EQ(count_exchanges(report, "ReduceScatter"), 3) << "table, o, down";
  EXPECT_EQ(count_exchanges(report, "AllGather"), 4) << "three norms, logits";
  EXPECT_THAT(report.text(), HasSubstr("3 scattered, 3 gathered"));
  EXPECT_THAT(report.text(), HasSubstr("ReduceScatter behind 'o': 512 of f32, 2048 bytes"));
  const ir::Graph& graph = all.ranks[1].graph;
  EXPECT_EQ((*graph.value(graph.find("o.residual")).shape)[1].text(), "4");
}

TEST(Tokens, FormatsAndFusions) {
  const DecoderSizes sizes{.q_heads = 6, .kv_heads = 3, .head_size = 32, .feed_forward = 96};
  for (const WeightFormat format :
       {WeightFormat::kPlain, WeightFormat::kNvfp4, WeightFormat::kInt4Bits}) {
    DecoderForm form = prompt(10, format);
    form.bias = form.packed_qkv = true;
    const ir::Graph whole = DecoderGraph(sizes, form).decoder();
    expect_same(whole, sizes, 3, 1, shard_tokens);
    expect_same(whole, sizes, 3, 1, fuse_tokens);
  }
}

TEST(Tokens, BatchesInFront) {
  const DecoderSizes sizes;
  DecoderForm form = prompt(3);
  form.batch = 6;
  const ir::Graph whole = DecoderGraph(sizes, form).gated_mlp();
  expect_same(whole, sizes, 4, 1, shard_tokens);
  const ShardingReport report = shard_all(whole, 4, shard_tokens).reports[0];
  EXPECT_EQ(count_exchanges(report, "ReduceScatter"), 1) << report.text();
}

// A residual that comes whole is read by parts, and what leaves is whole.
TEST(Tokens, OneLayerOfItsOwn) {
  const DecoderSizes sizes;
  const ir::Graph whole = DecoderGraph(sizes, prompt(8)).gated_mlp();
  expect_same(whole, sizes, 2, 1, shard_tokens);
  EXPECT_EQ(outline_text(shard_all(whole, 2, shard_tokens).ranks[0].graph),
            "ScaledDot ScaledDot Tanh Mul Mul ScaledDot Reshape ReduceScatter Reshape Slice Add "
            "Reshape AllGather Reshape");
}

TEST(Tokens, ReasonsWhyNot) {
  const DecoderSizes sizes;
  const auto tokens_of = [&](ir::Graph graph, int64_t ranks, int64_t least = 0) {
    return shard(graph, {.ranks = ranks, .least_gathered_bytes = 0, .least_scattered_bytes = least})
        .tokens;
  };
  EXPECT_THAT(tokens_of(DecoderGraph(sizes, {}).gated_mlp(), 2),
              HasSubstr("leaves their number open"));
  EXPECT_THAT(tokens_of(DecoderGraph(sizes, prompt(1)).gated_mlp(), 2), HasSubstr("1 for 2 ranks"));
  EXPECT_THAT(tokens_of(DecoderGraph(sizes, prompt(8)).gated_mlp(), 2, 1 << 20),
              HasSubstr("sums of 2048 bytes are too small"));
  EXPECT_EQ(tokens_of(DecoderGraph(sizes, prompt(8)).last_product(), 2), "");
  ir::Graph leaving = DecoderGraph(sizes, prompt(8)).gated_mlp();
  leaving.add_output(leaving.find("down"));
  EXPECT_THAT(tokens_of(leaving, 2), HasSubstr("4096 bytes would be gathered for 2048 of sums"));
}

// A sum that the next product reads stays one exchange.
TEST(Tokens, SumsForProducts) {
  DecoderGraph build({}, prompt(8));
  const ir::ValueId x = build.input("x", DType::kF32, build.rows(64));
  build.graph.add_output(build.mlp(build.mlp(x)));
  ir::Graph graph = std::move(build.graph);
  const ShardingReport report =
      shard(graph, {.ranks = 2, .least_gathered_bytes = 0, .least_scattered_bytes = 0});
  EXPECT_EQ(count_exchanges(report, "AllReduce"), 2) << report.text();
  EXPECT_THAT(report.tokens, HasSubstr("nothing but products reads the sums"));
}

}  // namespace
}  // namespace tenon::testing
