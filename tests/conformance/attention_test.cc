// Random attentions through every candidate, against float64. TENON_TEST_SEED=<n> runs one seed and
// prints its graph.
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

// What a run of the whole test has seen.
struct Seen {
  std::set<std::string> offered, ran;
};

struct Series {
  std::vector<int64_t> depths;
  std::vector<AttentionSizes> sizes;
  unsigned seeds;
  bool always_new_heads = false;
};

void judge(unsigned seed, const Series& series, bool print, Seen& seen) {
  const ir::Graph graph = random_attention(seed, series.depths, series.always_new_heads);
  if (print) std::cout << ir::print(graph);
  Settings settings = conformance_settings();
  const ir::Node& node = graph.node(graph.order().front());
  for (const auto& [name, support] : select(graph, node, settings).verdicts) {
    const std::string candidate(name);
    SCOPED_TRACE(candidate);
    // A library is not everywhere, nor does it take all that ours do.
    const bool is_own = candidate != "cudnn_sdpa";
    if (is_own) seen.offered.insert(candidate);
    if (!support) continue;
    if (is_own) seen.ran.insert(candidate);
    settings.tuning.candidate = candidate;
    const std::unique_ptr<Executable> executable = build_for_test(graph, settings);
    std::mt19937 random(seed);
    for (const AttentionSizes& sizes : series.sizes) {
      SCOPED_TRACE("b=" + std::to_string(sizes.b) + " q=" + std::to_string(sizes.q) +
                   " t=" + std::to_string(sizes.t) + " p=" + std::to_string(sizes.p));
      const std::vector<ReferenceTensor> inputs = attention_inputs(graph, sizes, random);
      EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                             attention_tolerance(graph)),
                "");
    }
  }
}

void judge_all(const Series& series) {
  const char* one = std::getenv("TENON_TEST_SEED");
  const unsigned first = one ? static_cast<unsigned>(std::atoi(one)) : 1;
  const unsigned last = one ? first : series.seeds;
  Seen seen;
  for (unsigned seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TENON_TEST_SEED=" + std::to_string(seed));
    try {
      judge(seed, series, one != nullptr, seen);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_EQ(seen.ran, seen.offered) << "a candidate ran nothing";
  EXPECT_FALSE(seen.ran.empty());
}

TEST(ConformanceAttention, SmallProblems) {
  judge_all({.depths = {1, 8, 20, 33, 64},
             .sizes = {{2, 3, 5, 4}, {1, 1, 1, 9}, {3, 17, 40, 0}, {0, 2, 3, 1}},
             .seeds = conformance_settings().gpu ? 16u : 80u});
}

// Heads as models have them; lengths on both sides of a block of queries or keys.
TEST(ConformanceAttention, WholeBlocksAndTheirEdges) {
  judge_all({.depths = {32, 64, 80, 96, 128, 256},
             .sizes = {{1, 65, 130, 17}, {1, 63, 64, 64}, {2, 1, 1, 129}, {1, 16, 15, 50}},
             .seeds = conformance_settings().gpu ? 14u : 16u});
}

// Norms, both kinds of pairs, parts of heads; tables by position and by length, angles by token.
TEST(ConformanceAttention, NewHeadsAreNormedAndRotated) {
  judge_all({.depths = {2, 6, 20, 33, 64, 128},
             .sizes = {{2, 3, 3, 4}, {1, 1, 1, 9}, {3, 17, 17, 0}, {2, 2, 2, 40}, {0, 1, 1, 1}},
             .seeds = conformance_settings().gpu ? 40u : 60u,
             .always_new_heads = true});
}

struct Built {
  ir::Graph graph;
  std::unique_ptr<Executable> executable;

  explicit Built(std::string_view text)
      : graph(ir::parse(text)), executable(build_for_test(graph, conformance_settings())) {}

  ReferenceTensor y(const std::vector<ReferenceTensor>& inputs) const {
    return run(*executable, graph, inputs)[0];
  }
  std::string against_reference(const std::vector<ReferenceTensor>& inputs) const {
    return disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                        attention_tolerance(graph));
  }
};

constexpr std::string_view kWithLengths = R"(
graph lengths {
  input %q: f16[2,4,3,32]
  input %k: f16[2,2,70,32]
  input %v: f16[2,2,70,32]
  input %lengths: i32[2]
  %y: f16[2,4,3,32] = tenon::Attention(%q, %k, %v, _, _, _, %lengths) {causal=1, kv_heads=2, q_heads=4}
  output %y
}
)";

// Rows past the length of a cache are memory that nobody wrote.
TEST(ConformanceAttention, KeysBeyondTheLengthAreNotRead) {
  const Built built(kWithLengths);
  std::mt19937 random(3);
  std::vector<ReferenceTensor> inputs = attention_inputs(built.graph, {}, random);
  inputs[3].set_integer(0, 5);
  inputs[3].set_integer(1, 66);
  for (const size_t cache : {1, 2}) {
    for (int64_t i = 0; i < inputs[cache].elements(); ++i) {
      const int64_t row = i / 32 % 70, batch = i / (2 * 70 * 32);
      if (row >= (batch == 0 ? 5 : 66)) inputs[cache].set(i, NAN);
    }
  }
  EXPECT_EQ(built.against_reference(inputs), "");
}

TEST(ConformanceAttention, LengthsOutOfRangeAreThoseOfTheCache) {
  const Built built(kWithLengths);
  std::mt19937 random(4);
  std::vector<ReferenceTensor> inputs = attention_inputs(built.graph, {}, random);
  std::vector<ReferenceTensor> clamped = inputs;
  inputs[3].set_integer(0, -7);
  clamped[3].set_integer(0, 0);
  inputs[3].set_integer(1, 1 << 30);
  clamped[3].set_integer(1, 70);
  EXPECT_EQ(disagreement({built.y(inputs)}, reference::evaluate(built.graph, clamped),
                         attention_tolerance(built.graph)),
            "");
}

TEST(ConformanceAttention, MaskedKeysMayHoldNan) {
  for (const std::string mask : {"bool", "f32"}) {
    SCOPED_TRACE(mask);
    const Built built(
        "graph masked {\n  input %q: f32[1,2,20,16]\n  input %k: f32[1,2,20,16]\n"
        "  input %v: f32[1,2,20,16]\n  input %mask: " +
        mask +
        "[20,20]\n"
        "  %y: f32[1,2,20,16] = tenon::Attention(%q, %k, %v, %mask) "
        "{kv_heads=2, q_heads=2}\n  output %y\n}\n");
    std::mt19937 random(5);
    std::vector<ReferenceTensor> inputs = attention_inputs(built.graph, {}, random);
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t j = 0; j < 20; ++j) {
        const bool keep = i != 4 && (j + i) % 3 != 0 && j != 11;  // query 4 sees nothing
        if (mask == "bool") inputs[3].set_integer(i * 20 + j, keep);
        if (mask != "bool")
          inputs[3].set(i * 20 + j, keep ? 0.25 * static_cast<double>(j) : -INFINITY);
      }
    }
    for (int64_t d = 0; d < 16; ++d) inputs[1].set(11 * 16 + d, NAN);
    EXPECT_EQ(built.against_reference(inputs), "");
  }
}

constexpr std::string_view kOpenMask = R"(
graph mask {
  input %q: f32[b,2,q,8]
  input %k: f32[b,2,t,8]
  input %v: f32[b,2,t,8]
  input %mask: bool[m,n]
  %y: f32[b,2,q,8] = tenon::Attention(%q, %k, %v, %mask) {kv_heads=2, q_heads=2}
  output %y
}
)";

std::vector<ReferenceTensor> with_mask(int64_t rows, int64_t columns) {
  std::mt19937 random(8);
  const auto operand = [&](int64_t length) {
    return random_tensor(DType::kF32, {1, 2, length, 8}, random);
  };
  return {operand(5), operand(6), operand(6), random_tensor(DType::kBool, {rows, columns}, random)};
}

// Nothing is read outside a mask that is too small.
TEST(ConformanceAttention, MasksOfAnotherSizeAreRefused) {
  const Built built(kOpenMask);
  EXPECT_EQ(built.against_reference(with_mask(5, 6)), "");
  EXPECT_EQ(built.against_reference(with_mask(1, 6)), "");
  EXPECT_EQ(built.against_reference(with_mask(5, 1)), "");
  EXPECT_THROW(built.y(with_mask(4, 6)), UserError);
}

// Sums in f32 over 16-bit operands keep what f32 would: p is not rounded to 16 bits.
TEST(ConformanceAttention, WideResultsOfNarrowOperands) {
  for (const std::string type : {"f16", "bf16"}) {
    SCOPED_TRACE(type);
    const Built built("graph wide {\n  input %q: " + type + "[1,2,5,40]\n  input %k: " + type +
                      "[1,2,33,40]\n  input %v: " + type +
                      "[1,2,33,24]\n"
                      "  %y: f32[1,2,5,24] = tenon::Attention(%q, %k, %v) "
                      "{kv_heads=2, q_heads=2}\n  output %y\n}\n");
    std::mt19937 random(6);
    EXPECT_EQ(built.against_reference(attention_inputs(built.graph, {}, random)), "");
  }
}

}  // namespace
}  // namespace tenon::kernels
