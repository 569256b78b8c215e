// Holds the reference to others' word: ONNX's stored node tests, and what ONNX Runtime's CPU
// provider makes of the contrib ops.
#include "tests/kernels/reference/golden_cases.h"

#include <gtest/gtest.h>

#include "kernels/reference/evaluate.h"

namespace tenon::kernels::reference {
namespace {

// Returns how many cases were judged.
int judge_all(const std::string& generator) {
  const GoldenCases cases(generator);
  if (!cases.missing().empty()) return -1;
  int judged = 0;
  for (const std::string& name : cases.names()) {
    const GoldenCase golden = cases.load(name);
    if (!is_judged(golden)) continue;
    ++judged;
    try {
      EXPECT_EQ(disagreement(golden, evaluate(golden.graph, golden.inputs)), "") << name;
    } catch (const std::exception& error) {
      ADD_FAILURE() << name << ": " << error.what();
    }
  }
  return judged;
}

TEST(GoldenCases, ReferenceAgreesWithOnnxNodeTests) {
  const int judged = judge_all("golden_nodes.py");
  if (judged < 0) GTEST_SKIP() << "no virtual environment: run scripts/setup.sh";
  EXPECT_GT(judged, 1200);
}

TEST(GoldenCases, ReferenceAgreesWithContribOpsOfOnnxRuntime) {
  const int judged = judge_all("golden_contrib.py");
  if (judged < 0) GTEST_SKIP() << "no virtual environment: run scripts/setup.sh";
  EXPECT_GT(judged, 50);
}

}  // namespace
}  // namespace tenon::kernels::reference
