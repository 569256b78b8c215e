// Graphs that once came out wrong, smallest form first found by random graphs.
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/random_graph.h"

namespace tenon::kernels {
namespace {

void expect_right(std::string_view text) {
  const ir::Graph graph = ir::parse(text);
  const std::unique_ptr<Executable> executable = build_for_test(graph, conformance_settings());
  std::mt19937 random(3);
  for (const auto& [b, s] : {std::pair{2, 5}, std::pair{3, 17}}) {
    const std::vector<ReferenceTensor> inputs = random_inputs(graph, b, s, random);
    const Tolerance tolerance = [](size_t, int64_t, double expected) {
      return 1e-6 * (1 + std::abs(expected));
    };
    EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                           tolerance),
              "");
  }
}

// LLVM 19 folded the selects of max(|x|, 0) into a comparison of x itself.
TEST(ConformanceRegression, MaxOfMagnitudeAndZero) {
  expect_right(R"(graph g {
    input %x: f32[b,s]
    %y: f32[b,s] = tenon::Loop(%x) body {
      input %x: f32[b,s]
      const %zero: f32[] = hex:00000000
      %a: f32[b,s] = Abs(%x)
      %m: f32[b,s] = Max(%a, %zero)
      output %m
    }
    output %y
  })");
}

// A stage after a reduction over one element read a padded input along that axis.
TEST(ConformanceRegression, PaddedAxisOfOneIsReadAgainAfterItsReduction) {
  expect_right(R"(graph g {
    input %x: f32[s,1]
    %y: f32[s+2,1] = tenon::Loop(%x) body {
      input %x: f32[s,1]
      const %c: f32[] = hex:0000003f
      %p: f32[s+2,4] = tenon::Pad(%x, %c) {pads_begin=["1","2"]}
      %v: f32[s+2,1] = tenon::Slice(%p) {starts=["0","2"], steps=[1,1]}
      %r: f32[s+2,1] = ReduceSum(%v) {axes=[1], keepdims=1}
      %u: f32[s+2,1] = Mul(%v, %r)
      output %u
    }
    output %y
  })");
}

// One element behind a guard was stored as two lanes: past the end of the output.
TEST(ConformanceRegression, OnePaddedElementIsStoredAlone) {
  expect_right(R"(graph g {
    input %x: f32[64]
    %y: f32[1] = tenon::Loop(%x) body {
      input %x: f32[64]
      const %c: f32[] = hex:0000003f
      %p: f32[67] = tenon::Pad(%x, %c) {pads_begin=["1"]}
      %v: f32[1] = tenon::Slice(%p) {starts=["46"], steps=[1]}
      output %v
    }
    output %y
  })");
}

}  // namespace
}  // namespace tenon::kernels
