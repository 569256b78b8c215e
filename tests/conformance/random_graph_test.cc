// Random graphs of supported ops with odd, open shapes: fused, built and run against float64.
// TENON_TEST_SEED=<n> runs one seed and prints its graphs.
#include "tests/conformance/random_graph.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

double largest_magnitude(const ReferenceTensor& x) {
  double largest = 0;
  for (const double value : x.reals) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

double largest_difference(const ReferenceTensor& a, const ReferenceTensor& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double difference = std::fabs(a.number(i) - b.number(i));
    if (std::isfinite(difference)) largest = std::max(largest, difference);
  }
  return largest;
}

// What one chain of float32 ops, rounded after each, makes of the graph tells how much rounding it
// amplifies; kernels round in other places, but no worse than a few times that.
Tolerance rounding_noise(const RandomGraph& random, const std::vector<ReferenceTensor>& inputs,
                         const std::vector<ReferenceTensor>& exact) {
  const std::vector<ReferenceTensor> rounded =
      reference::evaluate(random.graph, inputs, {.round_values = true, .symbols = {}});
  std::vector<double> noise;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double step = random.rounds ? std::ldexp(1, -10) : std::ldexp(1, -16);
    noise.push_back(32 * largest_difference(exact[i], rounded[i]) +
                    step * largest_magnitude(exact[i]) + std::ldexp(1, -22));
  }
  return [noise](size_t output, int64_t, double) { return noise[output]; };
}

struct Tally {
  int ran = 0;
  std::map<std::string, int> left_out;
};

void judge(unsigned seed, bool print, Tally& tally) {
  const RandomGraph random = random_graph(seed, 4 + static_cast<int>(seed % 12));
  if (random.graph.outputs().empty()) return;
  if (print) std::cout << ir::print(random.graph);
  const Settings settings = conformance_settings();
  const ir::Graph fused = fuse(random.graph, {}, [&](const ir::Graph& part, const ir::Node& node) {
    return supports(part, node, settings);
  });
  if (print) std::cout << ir::print(fused);
  const Support support = runs(fused, settings);
  const std::unique_ptr<Executable> executable =
      support ? build_for_test(fused, settings) : nullptr;
  if (!support) ++tally.left_out[support.reason];
  tally.ran += support.ok;
  std::mt19937 values(seed);
  for (const auto& [b, s] : {std::pair{2, 5}, std::pair{1, 17}, std::pair{3, 1}, std::pair{0, 3}}) {
    SCOPED_TRACE("b=" + std::to_string(b) + " s=" + std::to_string(s));
    const std::vector<ReferenceTensor> inputs = random_inputs(random.graph, b, s, values);
    const std::vector<ReferenceTensor> exact = reference::evaluate(random.graph, inputs);
    const Tolerance tolerance = rounding_noise(random, inputs, exact);
    EXPECT_EQ(disagreement(reference::evaluate(fused, inputs), exact, tolerance), "")
        << "after fusion";
    if (executable) {
      EXPECT_EQ(disagreement(run(*executable, fused, inputs), exact, tolerance), "")
          << "from the kernels";
    }
  }
}

TEST(ConformanceRandomGraph, KernelsAgreeWithTheReference) {
  const char* one = std::getenv("TENON_TEST_SEED");
  const unsigned first = one ? static_cast<unsigned>(std::atoi(one)) : 1;
  const unsigned last = one ? first : 250;
  Tally tally;
  for (unsigned seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TENON_TEST_SEED=" + std::to_string(seed));
    try {
      judge(seed, one != nullptr, tally);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::cout << tally.ran << " graphs ran whole\n";
  for (const auto& [reason, count] : tally.left_out)
    std::cout << "  " << count << "x " << reason << "\n";
  EXPECT_GT(tally.ran, one ? 0 : 150);
}

}  // namespace
}  // namespace tenon::kernels
