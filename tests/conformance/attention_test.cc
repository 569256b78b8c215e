// Random attentions through every candidate, against float64. TENON_TEST_SEED=<n> runs one seed and
// prints its graph.
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"

namespace tenon::kernels {
namespace {

// What a run of the whole test has seen.
struct Seen {
  std::set<std::string> offered, ran;
};

struct Series {
  std::vector<int64_t> depths;
  std::vector<AttentionSizes> sizes;
  unsigned seeds;
};

void judge(unsigned seed, const Series& series, bool print, Seen& seen) {
  const ir::Graph graph = random_attention(seed, series.depths);
  if (print) std::cout << ir::print(graph);
  Settings settings = conformance_settings();
  // The small tiles of a GPU with little shared memory: the host is quick with those.
  if (settings.emulate) settings.gpu->shared_bytes = 8 << 10;
  const ir::Node& node = graph.node(graph.order().front());
  for (const auto& [name, support] : select(graph, node, settings).verdicts) {
    const std::string candidate(name);
    SCOPED_TRACE(candidate);
    seen.offered.insert(candidate);
    if (!support) continue;
    seen.ran.insert(candidate);
    settings.only_candidate = candidate;
    const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
    std::mt19937 random(seed);
    for (const AttentionSizes& sizes : series.sizes) {
      SCOPED_TRACE("b=" + std::to_string(sizes.b) + " q=" + std::to_string(sizes.q) +
                   " t=" + std::to_string(sizes.t) + " p=" + std::to_string(sizes.p));
      const std::vector<ReferenceTensor> inputs = attention_inputs(graph, sizes, random);
      EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                             attention_tolerance(graph)),
                "");
    }
  }
}

void judge_all(const Series& series) {
  const char* one = std::getenv("TENON_TEST_SEED");
  const unsigned first = one ? static_cast<unsigned>(std::atoi(one)) : 1;
  const unsigned last = one ? first : series.seeds;
  Seen seen;
  for (unsigned seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TENON_TEST_SEED=" + std::to_string(seed));
    try {
      judge(seed, series, one != nullptr, seen);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_EQ(seen.ran, seen.offered) << "a candidate ran nothing";
  EXPECT_FALSE(seen.ran.empty());
}

TEST(ConformanceAttention, SmallProblems) {
  judge_all({.depths = {1, 8, 20, 33, 64},
             .sizes = {{2, 3, 5, 4}, {1, 1, 1, 9}, {3, 17, 40, 0}, {0, 2, 3, 1}},
             .seeds = conformance_settings().emulate ? 24u : 80u});
}

// Heads as models have them; lengths on both sides of a block of queries or keys.
TEST(ConformanceAttention, WholeBlocksAndTheirEdges) {
  judge_all({.depths = {32, 64, 80, 96, 128, 256},
             .sizes = {{1, 65, 130, 17}, {1, 63, 64, 64}, {2, 1, 1, 129}, {1, 16, 15, 50}},
             .seeds = conformance_settings().emulate ? 8u : 16u});
}

}  // namespace
}  // namespace tenon::kernels
