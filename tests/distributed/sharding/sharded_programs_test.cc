// Decoder layers over ranks that are threads: real programs, exchanges through loopback, against
// the float64 result of the whole graph.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "distributed/collective_calls.h"
#include "distributed/loopback.h"
#include "kernels/selector.h"
#include "tests/distributed/ranks.h"
#include "tests/distributed/sharding/same_as_whole.h"
#include "tests/kernels/run_graph.h"

namespace tenon::testing {
namespace {

using distributed::Communicator;
using kernels::HostTensor;

HostTensor on_host(const ReferenceTensor& tensor) {
  return HostTensor::from(tensor.dtype, tensor.dims, [&](int64_t i) { return tensor.number(i); });
}

std::vector<HostTensor> run_rank(Communicator& rank, const ir::Graph& whole,
                                 const std::vector<ReferenceTensor>& inputs) {
  kernels::Settings settings = kernels::test_settings();
  settings.collectives =
      distributed::make_collectives(std::shared_ptr<Communicator>(&rank, [](auto*) {}));
  const SupportsFn supports = [&](const ir::Graph& graph, const ir::Node& node) {
    return kernels::supports(graph, node, settings);
  };
  const ir::Graph fused = fuse(whole, {}, supports, [&](ir::Graph& graph) {
    shard(graph, {.rank = rank.rank(),
                  .ranks = rank.size(),
                  .least_gathered_bytes = 0,
                  .least_scattered_bytes = 0});
  });
  const auto executable = kernels::build_for_test(fused, settings);
  std::vector<HostTensor> given;
  for (const ReferenceTensor& input : inputs) given.push_back(on_host(input));
  kernels::TestContext context(fused, given);
  executable->run(context);
  return context.take_outputs();
}

// Sums of a few hundred terms in float32, one layer deep.
void expect_near_whole(const ReferenceTensor& expected, const HostTensor& got) {
  ASSERT_EQ(got.dims, expected.dims);
  double squares = 0;
  for (int64_t i = 0; i < expected.elements(); ++i) squares += std::pow(expected.number(i), 2);
  const double size = std::sqrt(squares / static_cast<double>(expected.elements()));
  const std::vector<double> numbers = got.numbers();
  for (int64_t i = 0; i < expected.elements(); ++i) {
    const double bound = 2e-5 * size + 1e-4 * std::fabs(expected.number(i));
    ASSERT_NEAR(numbers[static_cast<size_t>(i)], expected.number(i), bound) << "element " << i;
  }
}

void expect_same_programs(const ir::Graph& whole, const DecoderSizes& sizes, int ranks) {
  SCOPED_TRACE(fmt::format("{} ranks", ranks));
  const SymbolSizes symbols{{"b", 2}, {"s", 5}, {"p", 4}, {"h", sizes.kv_heads}};
  std::mt19937 random(11);
  auto inputs = random_inputs(whole, symbols, random);
  draw_ids(whole, sizes.vocabulary, random, inputs);
  const auto expected = kernels::reference::evaluate(whole, inputs);
  const auto heads = deal_heads(sizes.q_heads, sizes.kv_heads, ranks);
  ASSERT_TRUE(heads);
  std::vector<std::vector<HostTensor>> results(static_cast<size_t>(ranks));
  const auto all = distributed::make_loopback(ranks, {std::chrono::milliseconds(60'000)});
  const auto thrown = distributed::run_ranks(all, [&](Communicator& rank) {
    const auto own = heads->kv[static_cast<size_t>(rank.rank())][0];
    std::vector<ReferenceTensor> mine = inputs;
    for (ReferenceTensor& input : mine) {
      if (input.dims.size() == 4) input = heads_of(input, own.begin, own.size());
    }
    results[static_cast<size_t>(rank.rank())] = run_rank(rank, whole, mine);
  });
  for (const std::string& error : thrown) ASSERT_EQ(error, "");
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_EQ(results[rank].size(), expected.size());
    const auto own = heads->kv[rank][0];
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool cached = expected[i].dims.size() == 4;
      expect_near_whole(cached ? heads_of(expected[i], own.begin, own.size()) : expected[i],
                        results[rank][i]);
      if (!cached) {
        EXPECT_EQ(results[rank][i].bytes, results[0][i].bytes) << "ranks differ";
      }
    }
  }
}

struct Named {
  const char* name;
  DecoderSizes sizes;
  DecoderForm form;
};

const Named kDecoders[] = {
    {"Llama", {.hidden = 64, .q_heads = 16, .kv_heads = 8, .head_size = 16}, {}},
    {"Qwen with 14 and 2 heads",
     {.hidden = 96, .q_heads = 14, .kv_heads = 2, .head_size = 16, .feed_forward = 224},
     {.bias = true}},
    {"Qwen with 28 and 4 heads",
     {.hidden = 96, .q_heads = 28, .kv_heads = 4, .head_size = 16, .feed_forward = 352},
     {.packed_qkv = true, .head_norms = true}},
    {"GPT-OSS",
     {.hidden = 64, .q_heads = 16, .kv_heads = 2, .head_size = 16, .feed_forward = 96},
     {.bias = true, .sinks = true}},
};

TEST(ShardedPrograms, LayersOfDecoders) {
  for (const Named& decoder : kDecoders) {
    for (const WeightFormat weights : {WeightFormat::kPlain, WeightFormat::kNvfp4,
                                       WeightFormat::kMxfp8, WeightFormat::kInt4Bits}) {
      SCOPED_TRACE(fmt::format("{}, format {}", decoder.name, static_cast<int>(weights)));
      DecoderForm form = decoder.form;
      form.weights = weights;
      form.rotary = false;
      const ir::Graph whole = DecoderGraph(decoder.sizes, form).decoder();
      for (const int ranks : {2, 3, 4, 8}) expect_same_programs(whole, decoder.sizes, ranks);
    }
  }
}

// Each rank has tokens of its own between sums and products.
TEST(ShardedPrograms, TokensOfRanks) {
  for (const Named& decoder : kDecoders) {
    SCOPED_TRACE(decoder.name);
    DecoderForm form = decoder.form;
    form.rotary = false;
    form.batch = 1;
    form.tokens = 13;
    const ir::Graph whole = DecoderGraph(decoder.sizes, form).decoder();
    for (const int ranks : {2, 3, 4, 8}) expect_same_programs(whole, decoder.sizes, ranks);
  }
}

}  // namespace
}  // namespace tenon::testing
