// ONNX's node tests and the contrib cases through the passes and the kernels: what the passes make
// of a graph evaluates to the stored result, and so do the kernels wherever they claim the whole
// graph.
#include "tests/kernels/reference/golden_cases.h"

#include <iostream>
#include <map>

#include <gtest/gtest.h>

#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

using reference::GoldenCase;
using reference::GoldenCases;

struct Tally {
  int fused = 0, ran = 0, ran_with_constants = 0;
  std::map<std::string, int> left_out;  // reasons
};

// Stored results that hang on a rounding (a quantiser's ties) come out with values rounded as
// kernels round them; all others without.
std::string fused_disagreement(const GoldenCase& golden, const ir::Graph& fused) {
  const std::string exact = disagreement(golden, reference::evaluate(fused, golden.inputs));
  if (exact.empty()) return exact;
  return disagreement(
      golden, reference::evaluate(fused, golden.inputs, {.round_values = true, .symbols = {}}));
}

// Whether the kernels ran it; else why not.
Support judge(const GoldenCase& golden) {
  const ir::Graph fused = fuse(golden.graph);
  EXPECT_EQ(fused_disagreement(golden, fused), "") << "after fusion";
  const Settings settings = conformance_settings();
  if (Support support = runs(fused, settings); !support) return support;
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  EXPECT_EQ(disagreement(golden, run(*executable, fused, golden.inputs)), "") << "from the kernels";
  return Support::yes();
}

void judge_both(const GoldenCases& cases, const std::string& name, Tally& tally) {
  const GoldenCase golden = cases.load(name);
  if (!is_judged(golden)) return;
  ++tally.fused;
  if (judge(golden)) {
    ++tally.ran;
  } else if (const Support support = judge(cases.load_with_constants(name)); support) {
    ++tally.ran_with_constants;
  } else {
    ++tally.left_out[support.reason];
  }
}

Tally judge_all(const GoldenCases& cases) {
  Tally tally;
  for (const std::string& name : cases.names()) {
    SCOPED_TRACE(name);
    try {
      judge_both(cases, name, tally);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::cout << tally.ran << " of " << tally.fused << " graphs run whole, "
            << tally.ran_with_constants << " more with constants\n";
  for (const auto& [reason, count] : tally.left_out)
    std::cout << "  " << count << "x " << reason << "\n";
  return tally;
}

TEST(ConformanceGolden, OnnxNodeTests) {
  const GoldenCases cases("golden_nodes.py");
  if (!cases.missing().empty()) GTEST_SKIP() << cases.missing();
  const Tally tally = judge_all(cases);
  EXPECT_GT(tally.ran + tally.ran_with_constants, 1200);
}

TEST(ConformanceGolden, ContribOps) {
  const GoldenCases cases("golden_contrib.py");
  if (!cases.missing().empty()) GTEST_SKIP() << cases.missing();
  const Tally tally = judge_all(cases);
  EXPECT_GT(tally.ran + tally.ran_with_constants, 50);
}

}  // namespace
}  // namespace tenon::kernels
