// Attentions by cuDNN against the float64 reference: on a GPU by the real one, elsewhere by the
// stubs of driver and library.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/device.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "kernels/tunable_plans.h"
#include "tests/conformance/attention_problem.h"

namespace tenon::kernels {
namespace {

struct Heads {
  std::string name = "";
  int64_t depth = 64, q_heads = 4, kv_heads = 2;
  std::string options = "";   // "causal_top_left=1, "
  bool side_by_side = false;  // [B, S, H, D]
  bool past = false, lengths = false, rotary = false;
  std::string cache = "";  // rows of the presents; empty: nobody asks for them
  std::string queries = "q", keys = "t";
  AttentionSizes sizes = {2, 17, 17, 0};
  bool large = false;  // too slow for a stub that computes on one core
};

std::string graph_text(const Heads& heads, const std::string& type) {
  const auto operand = [&](int64_t count, const std::string& rows) {
    return heads.side_by_side ? fmt::format("{}[b,{},{},{}]", type, rows, count, heads.depth)
                              : fmt::format("{}[b,{},{},{}]", type, count, rows, heads.depth);
  };
  std::string text = "graph sdpa {\n";
  text += "  input %q: " + operand(heads.q_heads, heads.queries) + "\n";
  text += "  input %k: " + operand(heads.kv_heads, heads.keys) + "\n";
  text += "  input %v: " + operand(heads.kv_heads, heads.keys) + "\n";
  const std::string cache = fmt::format("{}[b,{},p,{}]", type, heads.kv_heads, heads.depth);
  if (heads.past) text += fmt::format("  input %past_k: {}\n  input %past_v: {}\n", cache, cache);
  if (heads.lengths) text += "  input %lengths: i32[b]\n";
  if (heads.rotary) {
    const std::string angles = fmt::format("f32[64,{}]", heads.depth / 2);
    text += fmt::format("  input %cos: {}\n  input %sin: {}\n", angles, angles);
  }
  std::string layouts;
  for (const char* name : {"q", "k", "v", "y"}) {
    if (heads.side_by_side) layouts += fmt::format(", {}_layout=\"bshd\"", name);
  }
  std::string presents, outputs = "  output %y\n";
  for (const char* name : {"%present_k", "%present_v"}) {
    if (heads.cache.empty()) continue;
    presents +=
        fmt::format(", {}: {}[b,{},{},{}]", name, type, heads.kv_heads, heads.cache, heads.depth);
    outputs += fmt::format("  output {}\n", name);
  }
  text += fmt::format("  %y: {}{} = tenon::Attention(%q, %k, %v, _, {}, {}, _{}) ",
                      operand(heads.q_heads, heads.queries), presents,
                      heads.past ? "%past_k, %past_v" : "_, _", heads.lengths ? "%lengths" : "_",
                      heads.rotary ? ", %cos, %sin" : "");
  text += fmt::format("{{{}q_heads={}, kv_heads={}{}}}\n{}}}\n", heads.options, heads.q_heads,
                      heads.kv_heads, layouts, outputs);
  return text;
}

std::vector<Heads> cases() {
  const std::string top_left = "causal_top_left=1, ";
  return {
      {.name = "plain"},
      {.name = "more_keys", .sizes = {2, 5, 23, 0}},
      {.name = "one_query", .sizes = {2, 1, 40, 0}},
      {.name = "scale", .options = "scale=0.3, ", .sizes = {1, 9, 9, 0}},
      {.name = "causal", .options = top_left},
      {.name = "causal_fewer_keys", .options = top_left, .sizes = {1, 20, 9, 0}},
      {.name = "heads_side_by_side", .options = top_left, .side_by_side = true},
      {.name = "heads_of_128", .depth = 128, .q_heads = 8, .kv_heads = 1, .options = top_left},
      {.name = "right_window", .options = "right_window=3, ", .sizes = {1, 12, 30, 0}},
      {.name = "window",
       .options = "causal_top_left=1, left_window=4, ",
       .keys = "q",
       .sizes = {1, 19, 19, 0}},
      {.name = "both_windows",
       .options = "left_window=2, right_window=5, ",
       .keys = "q",
       .sizes = {1, 19, 19, 0}},
      {.name = "bottom_right",
       .options = "causal=1, ",
       .queries = "8",
       .keys = "21",
       .sizes = {2, 8, 21, 0}},
      {.name = "bottom_right_window",
       .options = "causal=1, left_window=3, ",
       .queries = "8",
       .keys = "21",
       .sizes = {2, 8, 21, 0}},
      {.name = "past", .options = top_left, .past = true, .keys = "q", .sizes = {2, 17, 17, 30}},
      {.name = "lengths", .options = "least_length=1, ", .lengths = true, .sizes = {3, 17, 40, 0}},
      {.name = "lengths_causal",
       .options = top_left + "least_length=1, ",
       .lengths = true,
       .keys = "q",
       .sizes = {3, 40, 40, 0}},
      {.name = "lengths_of_a_past",
       .options = "least_length=1, ",
       .past = true,
       .lengths = true,
       .keys = "q",
       .sizes = {3, 17, 17, 30}},
      {.name = "cache_that_new_keys_fill",
       .options = top_left + "least_length=1, ",
       .side_by_side = true,
       .past = true,
       .lengths = true,
       .cache = "q",
       .keys = "q",
       .sizes = {3, 40, 40, 40}},
      {.name = "cache_filled_with_rotary",
       .options = top_left + "least_length=1, ",
       .past = true,
       .lengths = true,
       .rotary = true,
       .cache = "q",
       .keys = "q",
       .sizes = {3, 40, 40, 40}},
      {.name = "lengths_and_past",
       .options = top_left + "least_length=1, ",
       .past = true,
       .lengths = true,
       .keys = "q",
       .sizes = {3, 17, 17, 30}},
      {.name = "lengths_past_and_rotary",
       .options = top_left + "least_length=1, ",
       .past = true,
       .lengths = true,
       .rotary = true,
       .keys = "q",
       .sizes = {3, 17, 17, 30}},
      {.name = "llama_512",
       .depth = 128,
       .q_heads = 32,
       .kv_heads = 8,
       .options = top_left,
       .side_by_side = true,
       .sizes = {1, 512, 512, 0},
       .large = true},
      {.name = "long",
       .depth = 128,
       .q_heads = 2,
       .kv_heads = 1,
       .options = top_left,
       .sizes = {1, 2048, 2048, 0},
       .large = true},
      {.name = "long_past",
       .depth = 128,
       .q_heads = 4,
       .kv_heads = 1,
       .options = top_left,
       .past = true,
       .keys = "q",
       .sizes = {1, 300, 300, 2000},
       .large = true},
      {.name = "bert_512", .q_heads = 12, .kv_heads = 12, .sizes = {2, 512, 512, 0}, .large = true},
  };
}

// Batch rows have at least one key, and no more than a cache of theirs.
std::vector<ReferenceTensor> inputs_of(const ir::Graph& graph, const Heads& heads, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<ReferenceTensor> inputs = attention_inputs(graph, heads.sizes, random);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (graph.value(graph.inputs()[i]).name != "lengths") continue;
    for (int64_t row = 0; row < inputs[i].elements(); ++row) {
      const int64_t most = heads.cache.empty() ? heads.sizes.t + heads.sizes.p : heads.sizes.t;
      inputs[i].set_integer(row, std::clamp<int64_t>(inputs[i].integers.at(row), 1, most));
    }
  }
  return inputs;
}

bool on_stub() { return std::getenv("TENON_DRIVER_LIBRARY") != nullptr; }

Settings only_cudnn() {
  Settings settings = test_settings();
  settings.tuning.candidate = "cudnn_sdpa";
  return settings;
}

class CudnnSdpaTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* target = std::getenv("TENON_TEST_TARGET");
    if (target == nullptr || std::string(target) != "gpu") GTEST_SKIP() << "cuDNN needs a GPU";
    const cudnn::LibraryAnswer& found = cudnn::library();
    if (!found.support) GTEST_SKIP() << found.support.reason;
    if (Support answer = cudnn::sdpa(found.functions.version, {.head_size = 64}); !answer) {
      GTEST_SKIP() << answer.reason;
    }
  }
};

std::string verdict(const ir::Graph& graph, Settings settings) {
  settings.tuning.lists_all = true;
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  for (const auto& [name, support] : choice.verdicts) {
    if (name == "cudnn_sdpa") return support ? "yes" : support.reason;
  }
  return "not asked";
}

// Some versions are wrong for some forms.
bool is_taken(const ir::Graph& graph, const Settings& settings) {
  const std::string answer = verdict(graph, settings);
  if (answer.find("this is cuDNN") != std::string::npos) return false;
  const ir::Attention attention = ir::Attention::from(graph.node(graph.order().front()));
  const bool may_have_past = attention.past_k != ir::kNoValue && attention.causal_top_left &&
                             graph.find("present_k") == ir::kNoValue;
  if (attention.kv_lengths != ir::kNoValue && may_have_past) {
    EXPECT_EQ(answer, "cuDNN 9.14 gets lengths of batch rows behind a past wrong");
    return false;
  }
  EXPECT_EQ(answer, "yes");
  return answer == "yes";
}

TEST_P(CudnnSdpaTest, AgreesWithTheReference) {
  for (const Heads& heads : cases()) {
    if (on_stub() && heads.large) continue;
    SCOPED_TRACE(heads.name);
    const ir::Graph graph = ir::parse(graph_text(heads, GetParam()));
    if (!is_taken(graph, only_cudnn())) continue;
    const auto executable = build_for_test(graph, only_cudnn());
    const auto inputs = inputs_of(graph, heads, 11);
    const auto expected = reference::evaluate(graph, inputs);
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(disagreement(kernels::run(*executable, graph, inputs), expected,
                             attention_tolerance(graph)),
                "");
    }
  }
}

// Rows past a length are memory that nobody wrote, or the padding of a caller.
TEST_P(CudnnSdpaTest, KeysBeyondTheLengthAreNotMultiplied) {
  for (const bool in_cache : {false, true}) {
    SCOPED_TRACE(in_cache);
    Heads heads{.options = "causal_top_left=1, least_length=1, ",
                .past = in_cache,
                .lengths = true,
                .cache = in_cache ? "q" : "",
                .keys = "q",
                .sizes = {2, 100, 100, 100}};
    const ir::Graph graph = ir::parse(graph_text(heads, GetParam()));
    std::vector<ReferenceTensor> inputs = inputs_of(graph, heads, 13);
    const int64_t lengths[] = {71, 3};
    for (const int64_t row : {0, 1}) inputs.back().set_integer(row, lengths[row]);
    for (const size_t operand : {1, 2}) {
      for (int64_t i = 0; i < inputs[operand].elements(); ++i) {
        const int64_t key = i / heads.depth % 100, row = i / (heads.kv_heads * 100 * heads.depth);
        if (key >= lengths[row]) inputs[operand].set(i, NAN);
      }
    }
    const auto executable = build_for_test(graph, only_cudnn());
    EXPECT_EQ(disagreement(kernels::run(*executable, graph, inputs),
                           reference::evaluate(graph, inputs), attention_tolerance(graph)),
              "");
  }
}

// The stub computes when it is called, not when a graph is launched.
TEST_P(CudnnSdpaTest, CudaGraphsHoldTheCalls) {
  if (on_stub()) GTEST_SKIP() << "the stub of cuDNN puts nothing into CUDA graphs";
  for (const Heads& heads : cases()) {
    SCOPED_TRACE(heads.name);
    const ir::Graph graph = ir::parse(graph_text(heads, GetParam()));
    if (!is_taken(graph, only_cudnn())) continue;
    const auto inputs = inputs_of(graph, heads, 12);
    const auto plain = build_for_test(graph, only_cudnn());
    const auto captured =
        build_on_device(graph, only_cudnn(), device::Device::open(0), {.graphs = true});
    const auto expected = kernels::run(*plain, graph, inputs);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(kernels::run(*captured, graph, inputs)[0].reals, expected[0].reals);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudnnSdpaTest, testing::Values("f16", "bf16"),
                         [](const auto& info) { return info.param; });

// The real one opens the driver even where it is asked about a GPU that is not there.
std::string why_not_here() {
  if (const Support& found = cudnn::library().support; !found) return found.reason;
  Settings settings;
  settings.cudnn = true;
  settings.gpu = device::named_description("sm_90a").target();
  const std::string answer = verdict(ir::parse(graph_text(cases().front(), "f16")), settings);
  return answer.find("libcuda.so.1") == std::string::npos ? "" : answer;
}

// What GetCapability asks: no GPU is touched, so that any cuDNN can be asked on any machine that
// has what it compiles with.
TEST(CudnnSdpaSupportTest, ADescribedGpuIsEnough) {
  if (const std::string why = why_not_here(); !why.empty()) GTEST_SKIP() << why;
  Settings settings;
  settings.cudnn = true;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"}) {
    settings.gpu = device::named_description(arch).target();
    const int major = settings.gpu->arch == "sm_100a" ? 10 : 9;
    if (!cudnn::plans_without_device(cudnn::library().functions.version, major)) continue;
    for (const Heads& heads : cases()) {
      SCOPED_TRACE(fmt::format("{} {}", arch, heads.name));
      is_taken(ir::parse(graph_text(heads, "f16")), settings);
    }
  }
}

TEST(CudnnSdpaSupportTest, OursRunUnlessARecordSaysOtherwise) {
  if (const std::string why = why_not_here(); !why.empty()) GTEST_SKIP() << why;
  Settings settings;
  settings.cudnn = true;
  settings.gpu = device::named_description("sm_90a").target();
  const ir::Graph graph = ir::parse(graph_text(cases().front(), "f16"));
  const ir::Node& node = graph.node(graph.order().front());
  EXPECT_EQ(select(graph, node, settings).chosen(), "flash_decode");
  settings.tuning.candidate = "cudnn_sdpa";
  settings.tuning.candidate_rows = {129};
  EXPECT_EQ(select(graph, node, settings).chosen(),
            "flash_decode (rows <= 128), cudnn_sdpa (rows > 128)");
}

TEST(CudnnSdpaSupportTest, ATunerMeasuresBoth) {
  if (const std::string why = why_not_here(); !why.empty()) GTEST_SKIP() << why;
  Settings settings;
  settings.cudnn = true;
  settings.gpu = device::named_description("sm_90a").target();
  const ir::Graph graph = ir::parse(graph_text(cases().front(), "f16"));
  const std::vector<TunableFusion> fusions = tunable_fusions(graph, settings);
  ASSERT_EQ(fusions.size(), 1u);
  for (const TunableRange& range : fusions[0].ranges) {
    std::vector<std::string> candidates;
    for (const TunablePlan& plan : range.plans) candidates.push_back(plan.kernel.candidate);
    EXPECT_EQ(std::ranges::count(candidates, "cudnn_sdpa"), 1) << range.rows.text("rows");
    EXPECT_NE(candidates.at(range.untuned), "cudnn_sdpa");
  }
  const TunableRange& last = fusions[0].ranges.back();
  EXPECT_EQ(last.rows, RowRange{129});
  for (const TunablePlan& plan : last.plans) EXPECT_GT(plan.microseconds, 0);
}

TEST(CudnnSdpaSupportTest, WhatItIsNotAskedHasAReason) {
  Settings settings;
  settings.gpu = device::named_description("sm_90a").target();
  const auto reason = [&](const Heads& heads, const std::string& type = "f16") {
    return verdict(ir::parse(graph_text(heads, type)), settings);
  };
  EXPECT_EQ(reason({}), "enable_cudnn is 0");
  settings.cudnn = true;
  EXPECT_EQ(reason({}, "f32"), "q is not f16 or bf16");
  EXPECT_EQ(reason({.options = "softcap=2.0, "}), "cuDNN is not asked to cap scores");
  EXPECT_EQ(reason({.options = "causal=1, "}),
            "queries may be more than the keys, and the first ones see none");
  EXPECT_EQ(reason({.lengths = true}), "a batch row may have no keys");
  EXPECT_EQ(reason({.options = "causal=1, least_length=1, ", .lengths = true}),
            "in a short batch row queries may see no keys");
  EXPECT_EQ(reason({.options = "causal_top_left=1, ", .past = true}),
            "queries behind a past that are not as many as the new keys");
}

}  // namespace
}  // namespace tenon::kernels
