// All ranks together compute what the whole graph does.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/sharding/cut.h"
#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "tests/distributed/sharding/decoder_graph.h"
#include "tests/distributed/sharding/lockstep.h"

namespace tenon::testing {
namespace {

using distributed::deal_heads;
using distributed::HeadShares;
using distributed::shard;
using distributed::ShardingReport;

struct Sharded {
  std::vector<RankState> ranks;
  std::vector<ShardingReport> reports;
};

// Every rank's graph, checked; small weights are exchanged too.
Sharded shard_all(const ir::Graph& whole, int64_t count) {
  Sharded all;
  for (int64_t rank = 0; rank < count; ++rank) {
    ir::Graph graph = whole;
    all.reports.push_back(shard(graph, {rank, count, 0}));
    const Support valid = ir::verify(graph);
    EXPECT_TRUE(valid.ok) << valid.reason << "\n" << ir::print(graph);
    all.ranks.push_back({std::move(graph), {}});
  }
  return all;
}

bool is_cache(const ir::Value& value) { return value.shape && value.shape->size() == 4; }

// The whole graph's result against each rank's; caches by the heads that a rank has.
void expect_same(const ir::Graph& whole, const DecoderSizes& sizes, int64_t count,
                 unsigned seed = 1) {
  SCOPED_TRACE(fmt::format("{} ranks", count));
  SymbolSizes symbols{{"b", 2}, {"s", 3}, {"p", 4}, {"h", sizes.kv_heads}};
  std::mt19937 random(seed);
  const auto inputs = random_inputs(whole, symbols, random);
  const auto expected = kernels::reference::evaluate(whole, inputs);
  Sharded all = shard_all(whole, count);
  const auto heads = deal_heads(sizes.q_heads, sizes.kv_heads, count);
  std::vector<distributed::Range> own;
  for (size_t r = 0; r < all.ranks.size(); ++r) {
    RankState& rank = all.ranks[r];
    std::vector<ReferenceTensor> mine = inputs;
    rank.symbols = symbols;
    own.push_back({0, sizes.kv_heads});
    for (size_t i = 0; i < mine.size(); ++i) {
      const ir::Value& value = whole.value(whole.inputs()[i]);
      if (!is_cache(value) || (*value.shape)[1].is_constant()) continue;
      own[r] = heads->kv[r][0];
      rank.symbols["h"] = own[r].size();
      mine[i] = heads_of(inputs[i], own[r].begin, own[r].size());
    }
    set_inputs(rank, mine);
  }
  const auto got = run_in_lockstep(all.ranks);
  ASSERT_EQ(got.size(), all.ranks.size());
  for (size_t r = 0; r < got.size(); ++r) {
    SCOPED_TRACE(fmt::format("rank {}\n{}", r, all.reports[r].text()));
    ASSERT_EQ(got[r].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool cached = is_cache(whole.value(whole.outputs()[i]));
      const ReferenceTensor wanted =
          cached ? heads_of(expected[i], own[r].begin, own[r].size()) : expected[i];
      expect_equal(wanted, got[r][i]);
      if (!cached) {
        EXPECT_EQ(got[r][i].reals, got[0][i].reals) << "ranks differ";
      }
    }
  }
}

constexpr WeightFormat kFormats[] = {WeightFormat::kPlain, WeightFormat::kPlainRows,
                                     WeightFormat::kNvfp4, WeightFormat::kMxfp8,
                                     WeightFormat::kInt4,  WeightFormat::kInt4Bits};

TEST(Sharding, GatedMlp) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t ranks : {2, 3, 4, 8}) {
      SCOPED_TRACE(static_cast<int>(format));
      DecoderSizes sizes;
      sizes.feed_forward = 8 * 32 + 7 * 32;
      const ir::Graph whole = DecoderGraph(sizes, {.weights = format}).gated_mlp();
      expect_same(whole, sizes, ranks);
      const Sharded all = shard_all(whole, ranks);
      EXPECT_EQ(outline_text(all.ranks[0].graph),
                "ScaledDot ScaledDot Tanh Mul Mul ScaledDot AllReduce Add");
    }
  }
}

}  // namespace
}  // namespace tenon::testing
