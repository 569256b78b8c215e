// Random graphs, cut in random ways: all ranks together compute what the whole graph does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include <fmt/format.h>

#include "tests/distributed/sharding/random_layers.h"
#include "tests/distributed/sharding/same_as_whole.h"

namespace tenon::testing {
namespace {

using distributed::Annotation;
using distributed::Annotations;
using distributed::CutDims;

Annotations random_annotations(const std::vector<std::string>& weights, std::mt19937& random) {
  Annotations all;
  for (const std::string& weight : weights) {
    const auto drawn = random() % 5;
    if (drawn > 2) continue;
    all.nodes.push_back(
        {.node = weight, .weights = {weight}, .weight = std::vector<CutDims>{{0}, {1}, {}}[drawn]});
  }
  return all;
}

DecoderForm random_form(std::mt19937& random) {
  constexpr WeightFormat kFormats[] = {WeightFormat::kPlain, WeightFormat::kPlain,
                                       WeightFormat::kNvfp4, WeightFormat::kInt4Bits};
  DecoderForm form{.weights = kFormats[random() % 4]};
  if (random() % 2 == 0) {
    form.batch = 1;
    form.tokens = static_cast<int64_t>(4 + random() % 10);
  }
  return form;
}

struct Seen {
  int64_t exchanges = 0, scattered = 0, followed = 0;
};

Seen check_graph(unsigned seed) {
  std::mt19937 random(seed);
  const DecoderForm form = random_form(random);
  RandomLayers layers(form, seed);
  const ir::Graph whole = layers.grow(static_cast<int>(4 + random() % 14));
  const Annotations asked =
      random() % 3 == 0 ? random_annotations(layers.weights(), random) : Annotations{};
  const int64_t ranks = std::vector<int64_t>{2, 3, 4, 8}[random() % 4];
  const bool fused = random() % 3 == 0;
  const auto make = [&](ir::Graph& graph, distributed::ShardingOptions options) {
    options.least_scattered_bytes = 0;
    options.annotations = asked;
    return fused ? fuse_share(graph, options) : shard(graph, options);
  };
  SCOPED_TRACE(fmt::format("seed {}, fused {}\n{}", seed, fused, ir::print(whole)));
  expect_same(whole, {}, ranks, seed, make);
  ir::Graph graph = whole;
  const ShardingReport report = make(graph, {.ranks = ranks, .least_gathered_bytes = 0});
  Seen seen{.exchanges = std::ssize(report.exchanges)};
  for (const auto& one : report.exchanges) seen.scattered += one.op == "ReduceScatter" ? 1 : 0;
  for (const auto& one : report.annotations) seen.followed += one.reason.empty() ? 1 : 0;
  return seen;
}

// A failing seed is its own reproduction: TENON_SEED=17.
TEST(RandomSharding, TheSameNumbers) {
  if (const char* seed = std::getenv("TENON_SEED")) {
    check_graph(static_cast<unsigned>(std::atoi(seed)));
    return;
  }
  Seen all;
  for (unsigned seed = 0; seed < 300 && !HasFailure(); ++seed) {
    const Seen seen = check_graph(seed);
    all.exchanges += seen.exchanges;
    all.scattered += seen.scattered;
    all.followed += seen.followed;
  }
  EXPECT_GT(all.exchanges, 1000);
  EXPECT_GT(all.scattered, 50);
  EXPECT_GT(all.followed, 100);
}

}  // namespace
}  // namespace tenon::testing
