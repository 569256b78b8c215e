// Shares of all ranks, run together, against the whole graph.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "distributed/sharding/cut.h"
#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "tests/distributed/sharding/decoder_graph.h"
#include "tests/distributed/sharding/lockstep.h"

namespace tenon::testing {

using distributed::deal_heads;
using distributed::shard;
using distributed::ShardingReport;

struct Sharded {
  std::vector<RankState> ranks;
  std::vector<ShardingReport> reports;
};

using Shard = std::function<ShardingReport(ir::Graph&, const distributed::ShardingOptions&)>;

// All passes, with the sharding pass in its place.
inline ShardingReport fuse_share(ir::Graph& graph, const distributed::ShardingOptions& options) {
  ShardingReport report;
  const auto supports = [](const ir::Graph&, const ir::Node&) { return Support::yes(); };
  graph = fuse(std::move(graph), {}, supports,
               [&](ir::Graph& matched) { report = shard(matched, options); });
  return report;
}

// Every rank's graph, checked; small weights are exchanged too.
inline Sharded shard_all(const ir::Graph& whole, int64_t count, const Shard& make_share = shard) {
  Sharded all;
  for (int64_t rank = 0; rank < count; ++rank) {
    ir::Graph graph = whole;
    all.reports.push_back(make_share(graph, {rank, count, 0}));
    const Support valid = ir::verify(graph);
    EXPECT_TRUE(valid.ok) << valid.reason << "\n" << ir::print(graph);
    all.ranks.push_back({std::move(graph), {}});
  }
  return all;
}

inline bool is_cache(const ir::Value& value) { return value.shape && value.shape->size() == 4; }

// Indices of all rows of the table, counted from both ends.
inline void draw_ids(const ir::Graph& graph, int64_t vocabulary, std::mt19937& random,
                     std::vector<ReferenceTensor>& inputs) {
  std::uniform_int_distribution<int64_t> rows(-vocabulary, vocabulary - 1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (graph.value(graph.inputs()[i]).name != "ids") continue;
    for (int64_t& id : inputs[i].integers) id = rows(random);
  }
}

// The whole graph's result against each rank's; caches by the heads that a rank has.
inline void expect_same(const ir::Graph& whole, const DecoderSizes& sizes, int64_t count,
                        unsigned seed = 1, const Shard& make_share = shard) {
  SCOPED_TRACE(fmt::format("{} ranks", count));
  SymbolSizes symbols{{"b", 2}, {"s", 3}, {"p", 4}, {"h", sizes.kv_heads}};
  std::mt19937 random(seed);
  auto inputs = random_inputs(whole, symbols, random);
  draw_ids(whole, sizes.vocabulary, random, inputs);
  const auto expected = kernels::reference::evaluate(whole, inputs);
  Sharded all = shard_all(whole, count, make_share);
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

}  // namespace tenon::testing
