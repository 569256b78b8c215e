// How dims are dealt out, and what ranks hold of real models' layers.
#include "distributed/sharding/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/convert.h"
#include "distributed/sharding/cut_tensor.h"
#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/collectives.h"
#include "tests/distributed/sharding/decoder_graph.h"

namespace tenon::distributed {
namespace {

using testing::DecoderForm;
using testing::DecoderGraph;
using testing::DecoderSizes;
using testing::WeightFormat;

std::string text_of(const std::optional<Shares>& shares) {
  if (!shares) return "none";
  std::string all;
  for (const Pieces& pieces : *shares) all += (all.empty() ? "" : " | ") + text(pieces);
  return all;
}

TEST(Cut, DealsWholeUnits) {
  EXPECT_EQ(text_of(deal(10, 1, 3)), "0..4 | 4..7 | 7..10");
  EXPECT_EQ(text_of(deal(100, 32, 3)), "0..64 | 64..96 | 96..100");
  EXPECT_EQ(text_of(deal(64, 32, 3)), "none");
}

TEST(Cut, PrefersMultiplesOf64) {
  EXPECT_EQ(text_of(deal_columns(14336, 16, 3)), "0..4800 | 4800..9600 | 9600..14336");
  EXPECT_EQ(text_of(deal_columns(192, 32, 2)), "0..96 | 96..192");  // 128 and 64 are too uneven
  EXPECT_EQ(text_of(deal_columns(101, 0, 2)), "0..51 | 51..101");   // so are 56 and 45
  EXPECT_EQ(text_of(deal_columns(2880, 32, 8)),
            "0..384 | 384..768 | 768..1120 | 1120..1472 | "
            "1472..1824 | 1824..2176 | 2176..2528 | 2528..2880");
  EXPECT_EQ(text_of(deal_columns(3, 1, 4)), "none");
}

TEST(Cut, DealsHeadsInGroups) {
  const auto even = deal_heads(32, 8, 3);
  EXPECT_EQ(text_of(even->kv), "0..3 | 3..6 | 6..8");
  EXPECT_EQ(text_of(even->q), "0..12 | 12..24 | 24..32");
  const auto shared = deal_heads(14, 2, 3);  // as Qwen2-0.5B
  EXPECT_EQ(text_of(shared->kv), "0..1 | 0..1 | 1..2");
  EXPECT_EQ(text_of(shared->q), "0..4 | 4..7 | 7..14");
  EXPECT_FALSE(deal_heads(4, 2, 8));
  EXPECT_FALSE(deal_heads(5, 2, 2));
}

TEST(Cut, JoinsPiecesThatTouch) {
  const Shares parts = joined({{{0, 2}}, {{2, 4}}}, {{{4, 5}}, {{4, 5}}});
  EXPECT_EQ(text_of(parts), "0..2 4..5 | 2..5");
  EXPECT_FALSE(is_dealt_in_order(parts, 5));
  EXPECT_TRUE(is_dealt_in_order({{{0, 2}}, {{2, 5}}}, 5));
  EXPECT_FALSE(divided(parts, 2));
}

std::vector<double> numbers_of(const ir::Tensor& tensor) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    numbers.push_back(load_element(tensor.dtype, tensor.data, i));
  }
  return numbers;
}

TEST(CutTensor, TakesPiecesOfAnyDim) {
  for (const DType dtype : {DType::kI4, DType::kI8, DType::kF32}) {
    const auto tensor = ir::Tensor::of(dtype, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4});
    const auto middle = take(*tensor, 1, {{0, 1}, {2, 3}});
    EXPECT_EQ(middle->dims, (std::vector<int64_t>{2, 2, 2}));
    EXPECT_EQ(numbers_of(*middle), (std::vector<double>{0, 1, 4, 5, 6, 7, -3, -4}));
    const auto last = take(*tensor, 2, {{1, 2}});
    EXPECT_EQ(last->dims, (std::vector<int64_t>{2, 3, 1}));
    EXPECT_EQ(numbers_of(*last), (std::vector<double>{1, 3, 5, 7, -2, -4}));
    const auto first = take(*tensor, 0, {{1, 2}});
    EXPECT_EQ(first->data, tensor->data + tensor->bytes / 2) << "rows are a view";
    EXPECT_EQ(numbers_of(*first), (std::vector<double>{6, 7, -1, -2, -3, -4}));
    EXPECT_NE(first->facts, tensor->facts) << "what is known of the whole is not known of a part";
  }
}

// Rows of three nibbles begin within bytes.
TEST(CutTensor, RowsWithinBytes) {
  const auto tensor = ir::Tensor::of(DType::kU4, {4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(numbers_of(*take(*tensor, 0, {{1, 3}})), (std::vector<double>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(numbers_of(*take(*tensor, 1, {{1, 3}})),
            (std::vector<double>{2, 3, 5, 6, 8, 9, 11, 12}));
}

struct Model {
  const char* name;
  DecoderSizes sizes;
  bool bias = false, sinks = false;
};

const Model kModels[] = {
    {"Llama-8B", {4096, 32, 8, 128, 14336, 0}},
    {"Qwen2-7B", {3584, 28, 4, 128, 18944, 0}, true},
    {"GPT-OSS dense", {2880, 64, 8, 64, 11520, 0}, true, true},
};

// Most that any rank holds of a layer, for 2, 3, 4 and 8 ranks.
constexpr std::pair<int64_t, double> kMost[] = {{2, 0.52}, {3, 0.40}, {4, 0.28}, {8, 0.16}};

TEST(ShardedModels, RanksHoldTheirFraction) {
  for (const Model& model : kModels) {
    for (const WeightFormat format :
         {WeightFormat::kPlain, WeightFormat::kNvfp4, WeightFormat::kMxfp8, WeightFormat::kInt4,
          WeightFormat::kInt4Bits}) {
      for (const bool packed : {false, true}) {
        DecoderForm form{.weights = format};
        form.packed_qkv = packed;
        form.bias = model.bias;
        form.sinks = model.sinks;
        form.has_bytes = false;
        const ir::Graph whole = DecoderGraph(model.sizes, form).decoder();
        for (const auto& [ranks, most] : kMost) {
          SCOPED_TRACE(
              fmt::format("{} over {}, format {}", model.name, ranks, static_cast<int>(format)));
          ir::Graph graph = whole;
          const ShardingReport report = shard(graph, {ranks - 1, ranks});
          const auto all = static_cast<double>(report.constant_bytes);
          for (const int64_t bytes : report.bytes_by_rank) {
            EXPECT_LE(static_cast<double>(bytes) / all, most) << report.text();
          }
          EXPECT_TRUE(report.wholes.empty()) << report.text();
          EXPECT_EQ(report.exchanges.size(), 2U) << report.text();
        }
      }
    }
  }
}

// Each rank predicts what the others hold.
TEST(ShardedModels, RanksAgreeOnWhatTheyHold) {
  DecoderForm form{.weights = WeightFormat::kInt4Bits, .packed_qkv = true, .has_bytes = false};
  const ir::Graph whole = DecoderGraph(kModels[1].sizes, form).decoder();
  std::vector<ShardingReport> reports;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ir::Graph graph = whole;
    reports.push_back(shard(graph, {rank, 3}));
  }
  for (const ShardingReport& report : reports) {
    EXPECT_EQ(report.bytes_by_rank, reports[0].bytes_by_rank);
    EXPECT_EQ(report.bytes(), reports[0].bytes_by_rank[static_cast<size_t>(report.rank)]);
  }
}

}  // namespace
}  // namespace tenon::distributed
