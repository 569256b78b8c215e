// Random loops against the float64 reference.
#include <gtest/gtest.h>

#include <cmath>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "kernels/selector.h"
#include "tests/kernels/llvm/random_loop.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

using reference::ReferenceTensor;
using testing::RandomLoop;

std::vector<HostTensor> as_bytes(const std::vector<ReferenceTensor>& tensors) {
  std::vector<HostTensor> bytes;
  for (const ReferenceTensor& tensor : tensors) {
    bytes.push_back({tensor.dtype, tensor.dims, tensor.bytes()});
  }
  return bytes;
}

struct Case {
  ir::Graph graph;
  std::vector<ReferenceTensor> inputs;
  std::vector<ReferenceTensor> expected;
  Support support;
};

template <typename Make>
Case make_case(unsigned seed, const Make& make) {
  RandomLoop loop(seed);
  Case made{make(loop), {}, {}, {}};
  std::mt19937 random(seed + 1);
  made.inputs = testing::random_inputs(made.graph, loop.sizes(), random);
  const Support sound = ir::verify(made.graph);
  EXPECT_TRUE(sound) << sound.reason;
  made.expected = reference::evaluate(
      made.graph, made.inputs,
      {.symbols = reference::Symbols(loop.sizes().begin(), loop.sizes().end())});
  made.support = supports(made.graph, made.graph.node(made.graph.order().front()), test_settings());
  return made;
}

std::vector<HostTensor> run_case(const Case& made) {
  TestContext context(made.graph, as_bytes(made.inputs));
  build_for_test(made.graph, test_settings())->run(context);
  return context.take_outputs();
}

constexpr unsigned kSeeds = 150;

TEST(RandomLoops, ArithmeticAgreesWithTheReference) {
  unsigned ran = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    const Case made = make_case(seed, [](RandomLoop& loop) { return loop.arithmetic(); });
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + ir::print(made.graph));
    if (!made.support) {
      ADD_FAILURE() << made.support.reason;
      continue;
    }
    const auto results = run_case(made);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(results[i].dims, made.expected[i].dims);
      const bool half = results[i].dtype == DType::kF16;
      expect_near(results[i].numbers(), made.expected[i].reals, half ? 2e-3 : 1e-4);
    }
    if (::testing::Test::HasFailure()) return;
    ++ran;
  }
  EXPECT_EQ(ran, kSeeds);
}

TEST(RandomLoops, MovementKeepsEveryElement) {
  unsigned ran = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    const Case made = make_case(seed, [](RandomLoop& loop) { return loop.movement(); });
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + ir::print(made.graph));
    if (!made.support) {
      ADD_FAILURE() << made.support.reason;
      continue;
    }
    const auto results = run_case(made);
    ASSERT_EQ(results[0].bytes, made.expected[0].bytes());
    ++ran;
  }
  EXPECT_EQ(ran, kSeeds);
}

}  // namespace
}  // namespace tenon::kernels
