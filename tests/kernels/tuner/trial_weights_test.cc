// Plans of a range whose weights are packed alike have them once on the device.
#include "kernels/tuner/trial_weights.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/tunable_plans.h"
#include "kernels/tuner/trial_graph.h"
#include "tests/kernels/cost_fit/product_samples.h"

namespace tenon::kernels {
namespace {

constexpr int kCopies = 3;
constexpr size_t kN = 256, kK = 512, kWeightBytes = kN * kK / 2;

// f16 rows by an NVFP4 weight, with its bytes.
ir::Graph whole_product() {
  return ir::parse(fmt::format(R"(graph product {{
  input %x: f16[16,{1}]
  const %w: f4e2m1[{0},{1}] = hex:{2}
  const %s: f8e4m3fn[{0},{3}] = hex:{4}
  %y: f16[16,{0}] = tenon::ScaledDot(%x, %w, _, _, %s) {{b_k_last=1, block_b=16, result="f16"}} name="dot"
  output %y
}})",
                               kN, kK, std::string(kN * kK, '3'), kK / 16,
                               std::string(kN * kK / 8, '3')));
}

// A trial's graph of some copies, and programs of its plans.
class TrialWeights : public ::testing::Test {
 protected:
  static ir::Graph copies_of(const ir::Graph& graph) {
    const ir::Node& node = graph.node(graph.order().front());
    return make_trial_graph(graph, node, Sizes{}, int64_t{1} << 40, kCopies, kCopies).graph;
  }

  // Of `candidate`, with its best configs.
  std::vector<Program> programs_of(const ir::Graph& graph, const std::string& candidate) const {
    std::vector<Program> programs;
    const std::vector<TunableFusion> fusions = tunable_fusions(graph, settings_);
    for (const TunableRange& range : fusions.front().ranges) {
      for (const TunablePlan& plan : range.plans) {
        if (plan.kernel.candidate != candidate) continue;
        Settings settings = *plan.settings;
        settings.tuning.candidate = candidate;
        programs.push_back(make_program(graph, settings));
        name_shared_weights(programs.back());
      }
    }
    return programs;
  }

  static std::set<Digest> names_of(const Program& program) {
    std::set<Digest> names;
    for (const Slot& slot : program.slots) {
      if (slot.content) names.insert(*slot.content);
    }
    return names;
  }

  static std::vector<const Program*> pointers(const std::vector<Program>& programs) {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    return all;
  }

  const Settings settings_ = settings_of("sm_90a", true);
  const ir::Graph product_ = whole_product(), graph_ = copies_of(product_);
};

TEST_F(TrialWeights, ConfigsOfACandidateShareThemAndCopiesDoNot) {
  const std::vector<Program> programs = programs_of(graph_, "pipelined");
  ASSERT_GE(programs.size(), 2U);
  const std::set<Digest> names = names_of(programs.front());
  EXPECT_GE(names.size(), size_t{kCopies}) << "each copy is to find its weights in memory";
  for (const Program& program : programs) EXPECT_EQ(names_of(program), names);
}

TEST_F(TrialWeights, SharedOnesCountOnce) {
  const std::vector<Program> programs = programs_of(graph_, "pipelined");
  ASSERT_GE(programs.size(), 2U);
  const size_t one = weight_bytes_together({&programs.front()});
  EXPECT_GE(one, kCopies * kWeightBytes);
  EXPECT_LT(weight_bytes_together(pointers(programs)), one + kWeightBytes);
}

TEST_F(TrialWeights, OtherBytesHaveOtherNames) {
  const ir::Graph other_product = whole_product(), other = copies_of(other_product);
  const std::vector<Program> programs = programs_of(graph_, "pipelined");
  const std::vector<Program> others = programs_of(other, "pipelined");
  ASSERT_FALSE(programs.empty() || others.empty());
  for (const Digest& name : names_of(others.front())) {
    EXPECT_FALSE(names_of(programs.front()).contains(name));
  }
}

TEST_F(TrialWeights, WhatTheHostPacksIsNotShared) {
  const std::vector<Program> programs = programs_of(graph_, "mma");
  ASSERT_FALSE(programs.empty());
  EXPECT_TRUE(names_of(programs.front()).empty());
  EXPECT_EQ(weight_bytes_together({&programs.front(), &programs.front()}),
            2 * weight_bytes_together({&programs.front()}));
}

}  // namespace
}  // namespace tenon::kernels
