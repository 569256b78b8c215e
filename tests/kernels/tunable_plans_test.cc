// Everything that a tuner would measure: how many plans, all distinct, the untuned one among them.
#include "kernels/tunable_plans.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/kernels/program_samples.h"

namespace tenon::kernels {
namespace {

// Constants of a text are zeros, which is all that plans ask.
ir::Graph products(const std::string& rows) {
  return ir::parse(
      "graph g {\n  input %x: f16[" + rows + R"(,4096]
    const %w: f4e2m1[4096,4096] = sha256:00 bytes:8388608
    const %s: f8e4m3fn[4096,256] = sha256:01 bytes:1048576
    const %t: f8e4m3fn[4096,256] = sha256:02 bytes:1048576
    %h: f16[)" +
      rows +
      R"(,4096] = tenon::ScaledDot(%x, %w, _, _, %s) {b_k_last=1, block_b=16, alpha=0.5, result="f16"} name="first"
    %y: f16[)" +
      rows +
      R"(,4096] = tenon::ScaledDot(%h, %w, _, _, %t) {b_k_last=1, block_b=16, alpha=0.25, result="f16"} name="second"
    output %y
  })");
}

void expect_sound(const std::vector<TunableFusion>& fusions, const ir::Graph& graph,
                  const Settings& settings) {
  for (const TunableFusion& fusion : fusions) {
    const Choice untuned = select(graph, graph.node(fusion.nodes.at(0)), settings);
    int64_t next = fusion.ranges.front().rows.first;
    for (const TunableRange& range : fusion.ranges) {
      EXPECT_EQ(range.rows.first, next) << "rows are left out";
      next = range.rows.last == RowRange::kNoLimit ? range.rows.last : range.rows.last + 1;
      std::set<std::string> seen;
      for (const TunablePlan& plan : range.plans) {
        const KernelConfig& config = plan.kernel.config;
        std::string key = plan.kernel.candidate + " " + std::string(name(config.skeleton));
        for (const auto& [knob, value] : config.knobs) {
          key += " " + std::string(name(knob)) + "=" + std::to_string(value);
        }
        EXPECT_TRUE(seen.insert(key).second) << key << " stands twice";
        EXPECT_TRUE(plan.plan.lower);
        const bool is_first = std::ranges::any_of(plan.plan.ranges, [&](const RangePlan& own) {
          return own.rows.covers(range.rows) && own.kernels.front().config == config;
        });
        EXPECT_TRUE(is_first) << key;
      }
      const WantedKernel& chosen = range.plans.at(range.untuned).kernel;
      const bool is_chosen = std::ranges::any_of(untuned.parts, [&](const PartChoice& part) {
        return part.candidate == chosen.candidate && part.rows.covers(range.rows);
      });
      EXPECT_TRUE(is_chosen) << chosen.candidate;
    }
  }
}

TEST(TunablePlans, EqualFusionsAreListedOnceWithAllTheirPlans) {
  const Settings settings = gpu_settings("sm_90a");
  const ir::Graph graph = products("m");
  const std::vector<TunableFusion> fusions = tunable_fusions(graph, settings);
  ASSERT_EQ(fusions.size(), 1u);
  EXPECT_EQ(fusions[0].nodes.size(), 2u);
  expect_sound(fusions, graph, settings);
  for (const TunableRange& range : fusions[0].ranges) {
    const auto pipelined = std::ranges::count_if(
        range.plans, [](const auto& plan) { return plan.kernel.candidate == "pipelined"; });
    EXPECT_EQ(pipelined, settings.tuning.told) << range.rows.text("rows");
    EXPECT_GT(static_cast<int64_t>(range.plans.size()), pipelined) << "mma says yes as well";
    EXPECT_EQ(range.untuned, 0u);
  }
}

TEST(TunablePlans, MoreConfigsAreToldWhereATunerAsks) {
  Settings settings = gpu_settings("sm_90a");
  settings.tuning.told = 12;
  const ir::Graph graph = products("m");
  const std::vector<TunableFusion> fusions = tunable_fusions(graph, settings);
  ASSERT_EQ(fusions.size(), 1u);
  EXPECT_GT(fusions[0].ranges.at(0).plans.size(), 12u);
  expect_sound(fusions, graph, settings);
}

TEST(TunablePlans, OpenAndFixedRowsAreOneFusion) {
  const Settings settings = gpu_settings("sm_90a");
  const ir::Graph open = products("m"), fixed = products("4"), batched = products("b,s");
  const std::vector<TunableFusion> fusions = tunable_fusions(fixed, settings);
  ASSERT_EQ(fusions.size(), 1u);
  ASSERT_EQ(fusions[0].ranges.size(), 1u);
  EXPECT_EQ(fusions[0].ranges[0].rows, (RowRange{4, 4}));
  expect_sound(fusions, fixed, settings);
  EXPECT_EQ(fusions[0].key.fingerprint, tunable_fusions(open, settings).at(0).key.fingerprint);
  EXPECT_EQ(fusions[0].key.fingerprint, tunable_fusions(batched, settings).at(0).key.fingerprint);
  EXPECT_EQ(fusions[0].key.text,
            "tenon::ScaledDot(f16[*,4096], f4e2m1[4096,4096]#, -, -, f8e4m3fn[4096,256]#) -> "
            "(f16[*,4096])");
}

TEST(TunablePlans, SamplesOnEveryTargetAreSound) {
  for (const Settings& settings :
       {host_settings(), gpu_settings("sm_80"), gpu_settings("sm_90a"), gpu_settings("sm_120a")}) {
    for (const Sample& sample : samples()) {
      const ir::Graph graph = fused(sample.graph, settings);
      expect_sound(tunable_fusions(graph, settings), graph, settings);
    }
  }
}

TEST(TunablePlans, WhatTellsFusionsApartIsInTheirFingerprint) {
  const auto fingerprint = [](const std::string& attributes, const std::string& rows = "m",
                              Precision precision = Precision::kExact) {
    const ir::Graph graph = ir::parse("graph g {\n input %x: f16[" + rows + R"(,64]
      const %w: i8[64,64] = sha256:00 bytes:4096
      const %s: f32[64,2] = sha256:01 bytes:512
      %y: f16[)" + rows + ",64] = tenon::ScaledDot(%x, %w, _, _, %s) {" +
                                      attributes + "result=\"f16\"}\n output %y\n}");
    return fusion_key(graph, graph.node(graph.order().front()), precision).fingerprint;
  };
  const std::string usual = fingerprint("block_b=32, b_k_last=1, ");
  EXPECT_EQ(usual.size(), 32u);
  EXPECT_EQ(fingerprint("block_b=32, b_k_last=1, ", "7"), usual);
  EXPECT_NE(fingerprint("block_b=32, "), usual);
  EXPECT_NE(fingerprint("block_b=32, b_k_last=1, accuracy_level=4, "), usual);
  EXPECT_NE(fingerprint("block_b=32, b_k_last=1, ", "m", Precision::kInt8), usual);
}

}  // namespace
}  // namespace tenon::kernels
