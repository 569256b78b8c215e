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
#include "tests/distributed/sharding/same_as_whole.h"

namespace tenon::testing {
namespace {

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

TEST(Sharding, PackedGateAndUp) {
  for (const WeightFormat format : kFormats) {
    DecoderSizes sizes;
    sizes.feed_forward = 352;
    DecoderForm form{.weights = format};
    form.packed_gate = form.bias = true;
    const ir::Graph whole = DecoderGraph(sizes, form).gated_mlp();
    expect_same(whole, sizes, 3);
    EXPECT_EQ(outline_text(shard_all(whole, 3).ranks[0].graph),
              "ScaledDot Slice Slice Tanh Mul Mul ScaledDot AllReduce Add Add");
  }
}

TEST(Sharding, DecoderLayer) {
  for (const WeightFormat format : kFormats) {
    for (const bool packed : {false, true}) {
      for (const int64_t ranks : {2, 3, 4}) {
        SCOPED_TRACE(fmt::format("format {} packed {}", static_cast<int>(format), packed));
        DecoderSizes sizes{.q_heads = 8, .kv_heads = 2, .head_size = 32};
        DecoderForm form{.weights = format};
        form.packed_qkv = packed;
        form.bias = form.sinks = true;
        const ir::Graph whole = DecoderGraph(sizes, form).decoder();
        expect_same(whole, sizes, ranks);
        const Sharded all = shard_all(whole, ranks);
        EXPECT_EQ(count_ops(all.ranks[0].graph, ir::kAllReduce), 3) << "table, o, down";
        EXPECT_EQ(count_ops(all.ranks[0].graph, ir::kAllGather), 1) << "logits";
        EXPECT_EQ(all.reports[0].wholes.size(), 2U) << all.reports[0].text();
        for (const auto& whole : all.reports[0].wholes) {
          EXPECT_TRUE(whole.name == "cos" || whole.name == "sin") << whole.name;
        }
      }
    }
  }
}

TEST(Sharding, OddHeads) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    DecoderSizes sizes{.hidden = 32, .q_heads = 14, .kv_heads = 2, .head_size = 16};
    sizes.feed_forward = 300;
    sizes.vocabulary = 101;
    DecoderForm form{.packed_qkv = true, .bias = true};
    form.head_norms = true;
    expect_same(DecoderGraph(sizes, form).decoder(), sizes, ranks);
    form.packed_qkv = false;
    expect_same(DecoderGraph(sizes, form).decoder(), sizes, ranks);
  }
}

// Seven heads of 16 are no whole number of blocks of 32: scales are repeated for blocks of 16.
TEST(Sharding, HeadsWithinBlocks) {
  for (const WeightFormat format :
       {WeightFormat::kMxfp8, WeightFormat::kInt4, WeightFormat::kInt4Bits}) {
    DecoderSizes sizes{.hidden = 64, .q_heads = 14, .kv_heads = 2, .head_size = 16};
    const ir::Graph whole = DecoderGraph(sizes, {.weights = format}).decoder();
    for (const int64_t ranks : {2, 3, 8}) expect_same(whole, sizes, ranks);
  }
}

// What an attention reads by heads besides q, k and v.
TEST(Sharding, ScalesAndMasksOfHeads) {
  for (const int64_t kv_heads : {1, 3, 6}) {
    DecoderSizes sizes{.q_heads = 6, .kv_heads = kv_heads, .head_size = 16};
    DecoderForm form;
    form.coded_caches = form.head_mask = form.sinks = true;
    const ir::Graph whole = DecoderGraph(sizes, form).decoder();
    for (const int64_t ranks : {2, 3, 4}) expect_same(whole, sizes, ranks);
  }
}

// One tensor as the table and, turned, as the last product's weight: a rank has the same rows of
// both.
TEST(Sharding, TiedTable) {
  DecoderSizes sizes;
  DecoderGraph build(sizes, {.weights = WeightFormat::kPlainRows});
  ir::Graph whole = build.decoder();
  for (const ir::NodeId id : whole.order()) {
    ir::Node& node = whole.node(id);
    if (node.name == "lm_head") node.inputs[1] = whole.find("table");
  }
  expect_same(whole, sizes, 3);
  const Sharded all = shard_all(whole, 3);
  const auto held = [&](const char* op_name, size_t input) {
    const ir::Graph& graph = all.ranks[1].graph;
    for (const ir::NodeId id : graph.order()) {
      const ir::Node& node = graph.node(id);
      if (node.name == op_name && (node.is("Gather") || node.is(ir::kScaledDot))) {
        return graph.value(node.input(input)).constant->data;
      }
    }
    return static_cast<const std::byte*>(nullptr);
  };
  EXPECT_NE(held("embed", 0), nullptr);
  EXPECT_EQ(held("embed", 0), held("lm_head", 1));
}

// An index that no rank has is wrong on all of them.
TEST(Sharding, IndicesOutsideTheTable) {
  const ir::Graph whole = ir::parse(R"(graph main {
  input %ids: i64[1]
  const %table: f32[4,1] = hex:0000803f000000400000404000008040
  %x: f32[1,1] = Gather(%table, %ids) {axis=0} name="embed"
  output %x
})");
  for (const int64_t id : {-6, -5, 4, 5, 6, 7, 8}) {
    Sharded all = shard_all(whole, 2);
    for (RankState& rank : all.ranks) {
      set_inputs(rank, {ReferenceTensor::of(DType::kI64, {1}, {static_cast<double>(id)})});
      for (const ir::NodeId node : rank.graph.order()) {
        if (rank.graph.node(node).is("Gather")) break;
        run_node(rank, rank.graph.node(node));
      }
      const ir::Node* gather = nullptr;
      for (const ir::NodeId node : rank.graph.order()) {
        if (rank.graph.node(node).is("Gather")) gather = &rank.graph.node(node);
      }
      const int64_t place = rank.values[static_cast<size_t>(gather->input(1))]->integers[0];
      EXPECT_GE(place, 2) << "of a table of two rows, for index " << id;
    }
  }
}

// Caches of all heads: attention is computed by every rank, and says what that costs.
TEST(Sharding, CachesOfAllHeads) {
  DecoderSizes sizes{.q_heads = 4, .kv_heads = 4, .head_size = 16};
  DecoderForm form;
  form.symbolic_heads = false;
  const ir::Graph whole = DecoderGraph(sizes, form).decoder();
  expect_same(whole, sizes, 2);
  const Sharded all = shard_all(whole, 2);
  ASSERT_EQ(all.reports[0].wholes.size(), 1U) << all.reports[0].text();
  EXPECT_EQ(all.reports[0].wholes[0].name, "attention");
  EXPECT_NE(all.reports[0].wholes[0].reason.find("caches have 4 heads"), std::string::npos);
  EXPECT_EQ(all.reports[0].wholes[0].bytes, 3 * 64 * 64 * 4);
  EXPECT_EQ(count_ops(all.ranks[0].graph, ir::kAllReduce), 2) << "table, down";
  EXPECT_EQ(count_ops(all.ranks[0].graph, ir::kAllGather), 2) << "o, logits";
}

TEST(Sharding, RandomLayers) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto toss = [&] { return draw(0, 1) == 1; };
  for (unsigned seed = 0; seed < 60; ++seed) {
    DecoderSizes sizes;
    sizes.hidden = 16 * draw(1, 5);
    sizes.kv_heads = draw(1, 5);
    sizes.q_heads = sizes.kv_heads * draw(1, 4);
    sizes.head_size = 16 * draw(1, 2);
    sizes.feed_forward = draw(8, 400);
    sizes.vocabulary = draw(8, 130);
    DecoderForm form{.weights = kFormats[draw(0, std::ssize(kFormats) - 1)]};
    // Rows of nibbles begin with a byte, and a block of f4 has a whole scale.
    if (form.weights != WeightFormat::kPlain && form.weights != WeightFormat::kPlainRows) {
      sizes.feed_forward = (sizes.feed_forward / 2 + 1) * 2;
    }
    form.packed_qkv = toss();
    form.packed_gate = toss();
    form.bias = toss();
    form.sinks = toss();
    form.head_norms = toss();
    form.symbolic_heads = toss();
    const int64_t ranks = std::vector<int64_t>{2, 3, 4, 8}[static_cast<size_t>(draw(0, 3))];
    if (ranks > sizes.q_heads) form.symbolic_heads = false;
    SCOPED_TRACE(fmt::format("seed {}: {} heads, {} of keys, of {}, inner {}, format {}", seed,
                             sizes.q_heads, sizes.kv_heads, sizes.head_size, sizes.feed_forward,
                             static_cast<int>(form.weights)));
    expect_same(DecoderGraph(sizes, form, seed).decoder(), sizes, ranks, seed);
    if (::testing::Test::HasFailure()) return;
  }
}

// Heads in a dim of their own in the end, but not on the way.
TEST(Sharding, ViewsOfViews) {
  const char* const text = R"graph(graph main {
  input %x: f32[b,s,8]
  const %wq: f32[8,8] = sha256:00 bytes:256
  const %wo: f32[8,8] = sha256:01 bytes:256
  %q: f32[b,s,8] = tenon::ScaledDot(%x, %wq) {result="f32"} name="q"
  %rows: f32[b,4*s,2] = Reshape(%q) sources=[1]
  %heads: f32[b,s,4,2] = Reshape(%rows) sources=[2]
  %y: f32[b,s,8] = tenon::Attention(%heads, %heads, %heads) {k_layout="bshd", kv_heads=4, q_heads=4, q_layout="bshd", v_layout="bshd", y_layout="bs(hd)"} name="attention"
  %o: f32[b,s,8] = tenon::ScaledDot(%y, %wo) {result="f32"} name="o"
  output %o
})graph";
  const Sharded all = shard_all(ir::parse(text), 2);
  const ir::Graph& graph = all.ranks[1].graph;
  EXPECT_EQ(outline_text(graph), "ScaledDot Reshape Attention ScaledDot AllReduce");
  EXPECT_EQ(graph.node(graph.order()[1]).sources, (std::vector<int>{1, 2}));
}

TEST(Sharding, OneRankLeavesTheGraphAsItIs) {
  DecoderSizes sizes;
  const ir::Graph whole = DecoderGraph(sizes, {.packed_qkv = true}).decoder();
  ir::Graph graph = whole;
  const ShardingReport report = shard(graph, {0, 1, 0});
  EXPECT_EQ(ir::print(graph), ir::print(whole));
  EXPECT_EQ(report.bytes(), report.constant_bytes);
  EXPECT_TRUE(report.exchanges.empty());
}

TEST(Sharding, RanksThatDoNotFit) {
  ir::Graph graph = DecoderGraph({}, {}).gated_mlp();
  EXPECT_THROW(shard(graph, {2, 2, 0}), UserError);
  EXPECT_THROW(shard(graph, {-1, 2, 0}), UserError);
  EXPECT_THROW(shard(graph, {0, 0, 0}), UserError);
}

// Whoever wrote collectives has cut the graph.
TEST(Sharding, GraphsOfOthersStay) {
  const ir::Graph whole = DecoderGraph({}, {}).gated_mlp();
  ir::Graph graph = whole;
  shard(graph, {0, 2, 0});
  const std::string once = ir::print(graph);
  const ShardingReport again = shard(graph, {0, 2, 0});
  EXPECT_EQ(ir::print(graph), once);
  ASSERT_EQ(again.wholes.size(), 1U);
  EXPECT_NE(again.wholes[0].reason.find("collectives"), std::string::npos);
}

// Passes behind it fuse what ranks have, and leave collectives in their order.
TEST(Sharding, WithinFuse) {
  for (const WeightFormat format : {WeightFormat::kPlain, WeightFormat::kInt4Bits}) {
    for (const bool packed : {false, true}) {
      DecoderSizes sizes{.q_heads = 6, .kv_heads = 3, .head_size = 32};
      sizes.feed_forward = 96;
      DecoderForm form{.weights = format};
      form.packed_qkv = form.bias = packed;
      expect_same(DecoderGraph(sizes, form).decoder(), sizes, 3, 1, fuse_share);
    }
  }
}

// A value that leaves the graph is whole on every rank; products around it are still cut.
TEST(Sharding, ValuesThatLeave) {
  DecoderSizes sizes;
  ir::Graph whole = DecoderGraph(sizes, {}).gated_mlp();
  whole.add_output(whole.find("active"));
  whole.add_output(whole.find("up"));
  for (const int64_t ranks : {2, 3}) expect_same(whole, sizes, ranks);
  const Sharded all = shard_all(whole, 2);
  EXPECT_EQ(count_ops(all.ranks[0].graph, ir::kAllGather), 3) << "gate, up, down";
}

// Rows are picked before they travel.
TEST(Sharding, PickedRows) {
  DecoderSizes sizes;
  DecoderGraph build(sizes, {});
  ir::Graph whole = build.last_product();
  ir::Node pick;
  pick.op = "tenon::Slice";
  pick.inputs = {whole.outputs()[0]};
  pick.attributes["starts"] = std::vector<std::string>{"0", "s-1", "0"};
  pick.attributes["steps"] = std::vector<int64_t>{1, 1, 1};
  ir::Value last;
  last.name = "last";
  last.dtype = DType::kF32;
  last.shape = Shape{Dim::symbol("b"), 1, sizes.vocabulary};
  pick.outputs = {whole.add_value(std::move(last))};
  whole.set_output(0, pick.outputs[0]);
  whole.add_node(std::move(pick));
  expect_same(whole, sizes, 3);
  const Sharded all = shard_all(whole, 3);
  EXPECT_EQ(outline_text(all.ranks[0].graph), "ScaledDot Slice Transpose AllGather Transpose");
  EXPECT_EQ(all.reports[0].exchanges.at(0).elements.text(), "96*b");
}

// Weights of a share are the bytes of the whole where rows follow each other.
TEST(Sharding, RowsAreNotCopied) {
  DecoderSizes sizes;
  const ir::Graph whole = DecoderGraph(sizes, {.weights = WeightFormat::kPlainRows}).gated_mlp();
  const Sharded all = shard_all(whole, 2);
  const auto bytes_of = [](const ir::Graph& graph, const std::string& dot, size_t input) {
    const auto* node = graph.producer(graph.find(dot));
    return graph.value(node->input(input)).constant->data;
  };
  const std::byte* gate = bytes_of(whole, "gate", 1);
  EXPECT_EQ(bytes_of(all.ranks[0].graph, "gate", 1), gate);
  EXPECT_EQ(bytes_of(all.ranks[1].graph, "gate", 1), gate + ptrdiff_t{64} * 64 * 4);
}

}  // namespace
}  // namespace tenon::testing
