// Copies of a fusion run side by side as its launches do in the model.
#include "kernels/tuner/trial_graph.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/build_program.h"
#include "tests/kernels/cost_fit/product_samples.h"

namespace tenon::kernels {
namespace {

TrialGraph trial_of(const ir::Graph& graph, int most_copies, int together) {
  const ir::Node& node = graph.node(graph.order().front());
  return make_trial_graph(graph, node, Sizes{}, int64_t{1} << 40, most_copies, together);
}

// Launches that wait for all before them.
std::vector<size_t> beginnings(const TrialGraph& trial, Program& program) {
  separate_groups(trial, program);
  std::vector<size_t> found;
  for (size_t i = 0; i < program.launches.size(); ++i) {
    if (program.launches[i].after_all) found.push_back(i);
  }
  return found;
}

TEST(TrialGraph, CopiesAreWholeGroups) {
  const ir::Graph graph = product(128, 256, "4");
  EXPECT_EQ(trial_of(graph, 8, 3).copies, 6);
  EXPECT_EQ(trial_of(graph, 8, 4).copies, 8);
  EXPECT_EQ(trial_of(graph, 8, 100).copies, 8);
  EXPECT_EQ(trial_of(graph, 8, 100).together, 8);
  EXPECT_EQ(trial_of(graph, 1, 1).copies, 1);
}

TEST(TrialGraph, AGroupBeginsWhenTheOneBeforeHasEnded) {
  const ir::Graph graph = product(128, 256, "4");
  Settings settings = settings_of("sm_90a", true);
  settings.tuning.candidate = "pipelined";
  const TrialGraph groups = trial_of(graph, 6, 2), one = trial_of(graph, 6, 6);
  Program in_groups = make_program(groups.graph, settings);
  ASSERT_EQ(in_groups.launches.size(), 6U);
  EXPECT_EQ(beginnings(groups, in_groups), (std::vector<size_t>{2, 4}));
  Program in_one = make_program(one.graph, settings);
  EXPECT_EQ(beginnings(one, in_one), std::vector<size_t>{});
}

}  // namespace
}  // namespace tenon::kernels
