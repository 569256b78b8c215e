// Attention of many queries through the kernel that is made for them, against float64.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"

namespace tenon::kernels {
namespace {

struct Heads {
  int64_t depth = 64, value_depth = 64, q_heads = 2, kv_heads = 2;
  std::string type = "f16";
  std::string options = "";  // "causal=1, "
  bool lengths = false, sinks = false, past = false;
  bool side_by_side = false;  // [B, S, H, D]
  std::string mask = "";      // "bool[b,1,q,t]"
};

std::string graph_text(const Heads& heads) {
  const auto operand = [&](int64_t count, const char* rows, int64_t depth) {
    return heads.side_by_side ? fmt::format("{}[b,{},{},{}]", heads.type, rows, count, depth)
                              : fmt::format("{}[b,{},{},{}]", heads.type, count, rows, depth);
  };
  std::string text = "graph prefill {\n";
  text += "  input %q: " + operand(heads.q_heads, "q", heads.depth) + "\n";
  text += "  input %k: " + operand(heads.kv_heads, "t", heads.depth) + "\n";
  text += "  input %v: " + operand(heads.kv_heads, "t", heads.value_depth) + "\n";
  if (heads.past) {
    const auto cache = [&](int64_t depth) {
      return fmt::format("{}[b,{},p,{}]\n", heads.type, heads.kv_heads, depth);
    };
    text += "  input %past_k: " + cache(heads.depth);
    text += "  input %past_v: " + cache(heads.value_depth);
  }
  if (!heads.mask.empty()) text += "  input %mask: " + heads.mask + "\n";
  if (heads.lengths) text += "  input %lengths: i32[b]\n";
  if (heads.sinks) text += fmt::format("  input %sinks: f32[{}]\n", heads.q_heads);
  std::string layouts;
  for (const char* name : {"q", "k", "v", "y"}) {
    if (heads.side_by_side) layouts += fmt::format(", {}_layout=\"bshd\"", name);
  }
  text += fmt::format("  %y: {} = tenon::Attention(%q, %k, %v, {}, {}, {}, {}) ",
                      operand(heads.q_heads, "q", heads.value_depth),
                      heads.mask.empty() ? "_" : "%mask", heads.past ? "%past_k, %past_v" : "_, _",
                      heads.lengths ? "%lengths" : "_", heads.sinks ? "%sinks" : "_");
  text += fmt::format("{{{}q_heads={}, kv_heads={}{}}}\n  output %y\n}}\n", heads.options,
                      heads.q_heads, heads.kv_heads, layouts);
  return text;
}

Settings only_prefill() {
  Settings settings = pipelined_settings();
  settings.tuning.candidate = "prefill";
  return settings;
}

struct Built {
  ir::Graph graph;
  std::unique_ptr<Executable> executable;

  explicit Built(const Heads& heads)
      : graph(ir::parse(graph_text(heads))), executable(build_for_test(graph, only_prefill())) {}

  std::string against_reference(const std::vector<ReferenceTensor>& inputs) const {
    return disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                        attention_tolerance(graph));
  }
  void expect_right(const AttentionSizes& sizes, unsigned seed = 1) const {
    SCOPED_TRACE(fmt::format("b={} q={} t={} p={}", sizes.b, sizes.q, sizes.t, sizes.p));
    std::mt19937 random(seed);
    EXPECT_EQ(against_reference(attention_inputs(graph, sizes, random)), "") << ir::print(graph);
  }
};

TEST(PrefillAttention, QueriesAndKeysOfAnyNumber) {
  const Built built({.options = "causal=1, "});
  for (const int64_t queries : {1, 17, 63, 64, 65, 127, 128, 129, 200, 300}) {
    built.expect_right({1, queries, queries, 0});
    built.expect_right({1, queries, queries + 77, 0});
  }
  built.expect_right({1, 150, 40, 0});  // the first queries see nothing
  built.expect_right({0, 150, 40, 0});
  built.expect_right({1, 150, 0, 0});
}

// As many tiles of queries as fill some rounds of the CTAs, and a part of the last one or none.
TEST(PrefillAttention, RoundsOfAnyNumber) {
  const Built built({.q_heads = 5, .kv_heads = 1, .options = "causal=1, "});
  for (const int64_t batch : {1, 2, 3}) {
    for (const int64_t queries : {130, 300, 513}) {
      built.expect_right({batch, queries, queries, 0}, static_cast<unsigned>(queries));
    }
  }
}

TEST(PrefillAttention, HeadsOfEverySize) {
  for (const int64_t depth : {64, 80, 96, 112, 128, 160, 192, 256}) {
    if (depth > longest_heads()) continue;
    const Built built(
        {.depth = depth, .value_depth = depth, .q_heads = 4, .kv_heads = depth == 96 ? 1 : 2});
    built.expect_right({1, 140, 150, 0});
  }
  Built({.depth = 96, .value_depth = 64, .type = "bf16"}).expect_right({1, 70, 200, 0});
}

TEST(PrefillAttention, HeadsSideBySide) {
  for (const int64_t depth : {64, 80, 128}) {
    const Built built({.depth = depth,
                       .value_depth = depth,
                       .q_heads = 8,
                       .kv_heads = 2,
                       .type = "bf16",
                       .options = "causal=1, ",
                       .side_by_side = true});
    built.expect_right({2, 131, 131, 0});
    built.expect_right({2, 60, 260, 0});
  }
}

TEST(PrefillAttention, WindowsOnBothSides) {
  for (const std::string options :
       {"causal=1, left_window=40, ", "left_window=3, right_window=200, ", "right_window=0, ",
        "causal=1, left_window=500, ", "causal_top_left=1, ", "left_window=129, ",
        "left_window=3000000000, right_window=5000000000, "}) {
    SCOPED_TRACE(options);
    const Built built({.options = options});
    built.expect_right({1, 290, 290, 0});
    built.expect_right({1, 100, 400, 0});
    built.expect_right({1, 300, 100, 0});
  }
}

TEST(PrefillAttention, LengthsOfEachRow) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    const Built built({.q_heads = 4, .options = "causal=1, ", .lengths = true});
    built.expect_right({3, 130, 300, 0}, seed);
    built.expect_right({3, 30, 129, 0}, seed);
  }
}

TEST(PrefillAttention, CachesAndSinks) {
  Built({.options = "causal=1, ", .past = true}).expect_right({2, 130, 130, 70});
  Built({.options = "causal=1, ", .lengths = true, .past = true}).expect_right({2, 130, 130, 70});
  Built({.depth = 128, .value_depth = 128, .options = "causal=1, left_window=60, ", .sinks = true})
      .expect_right({1, 150, 150, 0});
  Built({.options = "scale=0.7, ", .sinks = true}).expect_right({1, 150, 150, 0});
}

TEST(PrefillAttention, MasksOfEveryBroadcast) {
  for (const std::string mask : {"bool[q,t]", "f16[b,1,1,t]", "f32[b,2,q,t]", "bool[q,1]"}) {
    SCOPED_TRACE(mask);
    Built({.mask = mask}).expect_right({2, 140, 150, 0});
    Built(
        {.depth = 128, .value_depth = 128, .options = "causal=1, ", .lengths = true, .mask = mask})
        .expect_right({2, 70, 200, 0});
  }
}

TEST(PrefillAttention, CappedScores) {
  for (const int64_t depth : {64, 256}) {
    if (depth > longest_heads()) continue;
    Built({.depth = depth,
           .value_depth = depth,
           .options = "causal=1, softcap=2.5, ",
           .sinks = depth == 64})
        .expect_right({1, 140, 140, 0});
  }
  Built({.options = "softcap=1.5, scale=-0.5, "}).expect_right({1, 70, 130, 0});
}

// A maximum that grows by little stays, one that grows by much rescales the sums.
TEST(PrefillAttention, MaximaThatGrow) {
  const Built built({.options = "scale=1.0, "});
  for (const double growth : {0.02, 0.5}) {
    std::mt19937 random(9);
    std::vector<ReferenceTensor> inputs = attention_inputs(built.graph, {1, 130, 600, 0}, random);
    for (int64_t i = 0; i < inputs[1].elements(); ++i) {
      const int64_t row = i / 64 % 600;
      inputs[1].set(i, i % 64 == 0 ? growth * static_cast<double>(row) / 8 : 0);
    }
    for (int64_t i = 0; i < inputs[0].elements(); ++i) inputs[0].set(i, i % 64 == 0 ? 1 : 0);
    EXPECT_EQ(built.against_reference(inputs), "") << growth;
  }
}

// Rows past the length of a cache are memory that nobody wrote, and so may be those of other heads.
TEST(PrefillAttention, ValuesBehindTheLastKeyAreNotMultiplied) {
  const Built built({.options = "causal=1, ", .lengths = true});
  std::mt19937 random(3);
  std::vector<ReferenceTensor> inputs = attention_inputs(built.graph, {2, 50, 300, 0}, random);
  const int64_t lengths[] = {201, 3};
  for (size_t batch = 0; batch < 2; ++batch) {
    inputs[3].set_integer(static_cast<int64_t>(batch), lengths[batch]);
  }
  for (const size_t cache : {1, 2}) {
    for (int64_t i = 0; i < inputs[cache].elements(); ++i) {
      const int64_t row = i / 64 % 300, batch = i / (2 * 300 * 64);
      if (row >= lengths[batch]) inputs[cache].set(i, NAN);
    }
  }
  EXPECT_EQ(built.against_reference(inputs), "");
}

TEST(PrefillAttention, SaysWhatItDoesNotTake) {
  const auto reason = [](const Heads& heads) {
    const ir::Graph graph = ir::parse(graph_text(heads));
    const Choice choice = select(graph, graph.node(graph.order().front()), only_prefill());
    for (const auto& [name, support] : choice.verdicts) {
      if (name == "prefill") return support.reason;
    }
    return std::string("not offered");
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_NE(reason({.type = "f32"}).find("not f16 or bf16"), std::string::npos);
  EXPECT_NE(reason({.depth = 72, .value_depth = 72}).find("head_size 72"), std::string::npos);
  EXPECT_NE(reason({.depth = 256, .mask = "bool[q,t]"}).find("mask"), std::string::npos);
  EXPECT_NE(reason({.options = "scale=-1.0, "}).find("not positive"), std::string::npos);
}

}  // namespace
}  // namespace tenon::kernels
