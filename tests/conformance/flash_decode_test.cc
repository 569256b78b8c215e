// Attention of few queries whose keys are split over blocks, against float64: lengths around a
// stage, groups of heads, head sizes, and everything that hides keys. Interpreted where there is no
// GPU.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Attention over a cache [batch, heads, keys, depth] whose sizes are open.
struct DecodeCase {
  std::string type = "f16";
  int64_t batch = 1, queries = 1, keys = 1;
  int64_t q_heads = 8, kv_heads = 2, depth = 128, value_depth = 0;
  std::string mask = "";        // "bool[b,1,q,k]"
  std::string attributes = "";  // "causal=1, "
  bool has_lengths = false, has_sinks = false;

  std::string text() const {
    const auto tensor = [&](int64_t heads, const char* rows, int64_t columns) {
      return type + "[b," + std::to_string(heads) + "," + rows + "," + std::to_string(columns) +
             "]";
    };
    const int64_t columns = value_depth == 0 ? depth : value_depth;
    std::string out = "graph decode {\n  input %q: " + tensor(q_heads, "q", depth) +
                      "\n  input %k: " + tensor(kv_heads, "k", depth) +
                      "\n  input %v: " + tensor(kv_heads, "k", columns) + "\n";
    if (!mask.empty()) out += "  input %mask: " + mask + "\n";
    if (has_lengths) out += "  input %lengths: i32[b]\n";
    if (has_sinks) out += "  input %sinks: " + type + "[" + std::to_string(q_heads) + "]\n";
    out += "  %y: " + tensor(q_heads, "q", columns) + " = tenon::Attention(%q, %k, %v, " +
           (mask.empty() ? "_" : "%mask") + ", _, _, " + (has_lengths ? "%lengths" : "_") + ", " +
           (has_sinks ? "%sinks" : "_") + ") {" + attributes +
           "kv_heads=" + std::to_string(kv_heads) + ", q_heads=" + std::to_string(q_heads) +
           "}\n  output %y\n}\n";
    return out;
  }
};

Settings only_flash_decode() {
  Settings settings = pipelined_settings();
  settings.tuning.candidate = "flash_decode";
  return settings;
}

class Decoder {
 public:
  explicit Decoder(const DecodeCase& one, int rank = 0)
      : case_(one), graph_(ir::parse(one.text())) {
    Settings settings = only_flash_decode();
    settings.tuning.rank = rank;
    executable_ = build_for_test(graph_, settings);
  }

  std::vector<ReferenceTensor> inputs(unsigned seed = 1) const {
    std::mt19937 random(seed);
    std::vector<ReferenceTensor> made;
    for (const ir::ValueId id : graph_.inputs()) {
      const ir::Value& value = graph_.value(id);
      std::vector<int64_t> dims;
      for (const Dim& dim : *value.shape) {
        dims.push_back(dim.evaluate([&](std::string_view symbol) {
          return symbol == "b" ? case_.batch : symbol == "q" ? case_.queries : case_.keys;
        }));
      }
      ReferenceTensor tensor = random_tensor(value.dtype, dims, random);
      for (int64_t i = 0; value.name == "lengths" && i < tensor.elements(); ++i) {
        tensor.set_integer(i, case_.keys - i);
      }
      for (int64_t i = 0; value.name == "mask" && tensor.is_real() && i < tensor.elements(); ++i) {
        if (random() % 4 == 0) tensor.set(i, -kInfinity);
      }
      made.push_back(std::move(tensor));
    }
    return made;
  }
  ReferenceTensor& input(std::vector<ReferenceTensor>& inputs, std::string_view name) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph_.value(graph_.inputs()[i]).name == name) return inputs[i];
    }
    throw std::out_of_range("no such input");
  }

  std::vector<ReferenceTensor> results(const std::vector<ReferenceTensor>& inputs) const {
    return run(*executable_, graph_, inputs);
  }
  std::string disagrees(const std::vector<ReferenceTensor>& inputs) const {
    return disagreement(results(inputs), reference::evaluate(graph_, inputs),
                        attention_tolerance(graph_));
  }

 private:
  DecodeCase case_;
  ir::Graph graph_;
  std::unique_ptr<Executable> executable_;
};

std::string judged(const DecodeCase& one) {
  const Decoder decoder(one);
  return decoder.disagrees(decoder.inputs());
}

TEST(FlashDecode, LengthsAroundAStageAndManySplits) {
  for (const int64_t keys : {1, 2, 15, 16, 17, 127, 128, 129, 700, 4097}) {
    EXPECT_EQ(judged({.keys = keys}), "") << keys;
  }
}

TEST(FlashDecode, GroupsOfHeads) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair{2, 2}, {8, 2}, {16, 2}, {14, 2}, {16, 1}, {5, 1}}) {
    for (const std::string type : {"f16", "bf16"}) {
      EXPECT_EQ(
          judged(
              {.type = type, .keys = 300, .q_heads = q_heads, .kv_heads = kv_heads, .depth = 64}),
          "")
          << q_heads << " on " << kv_heads << " " << type;
    }
  }
}

TEST(FlashDecode, HeadSizes) {
  for (const int64_t depth : {16, 32, 64, 80, 96, 128, 192, 256}) {
    if (depth > longest_heads()) continue;
    EXPECT_EQ(judged({.keys = 200, .q_heads = 4, .kv_heads = 1, .depth = depth}), "") << depth;
  }
  EXPECT_EQ(judged({.keys = 90, .depth = 64, .value_depth = 128}), "");
  EXPECT_EQ(judged({.keys = 90, .depth = 128, .value_depth = 48}), "");
}

TEST(FlashDecode, SeveralQueriesShareTheRows) {
  for (const int64_t queries : {1, 2, 3, 4}) {
    for (const std::string rule : {"", "causal=1, ", "causal_top_left=1, "}) {
      EXPECT_EQ(judged({.batch = 2,
                        .queries = queries,
                        .keys = 150,
                        .depth = 64,
                        .attributes = rule,
                        .has_lengths = true}),
                "")
          << queries << " " << rule;
    }
  }
  // More than the rows hold: another kernel.
  EXPECT_EQ(judged({.queries = 5, .keys = 40, .depth = 64, .attributes = "causal=1, "}), "");
}

TEST(FlashDecode, WindowsSoftCapScaleAndSinks) {
  for (const std::string rule :
       {"left_window=20, causal=1, ", "left_window=0, ", "right_window=3, left_window=140, ",
        "softcap=1.5, ", "scale=0.3, ", "causal=1, softcap=2.0, scale=0.2, "}) {
    for (const bool sinks : {false, true}) {
      EXPECT_EQ(judged({.batch = 2,
                        .queries = 2,
                        .keys = 290,
                        .depth = 64,
                        .attributes = rule,
                        .has_lengths = true,
                        .has_sinks = sinks}),
                "")
          << rule;
    }
  }
}

TEST(FlashDecode, Masks) {
  for (const std::string type : {"bool", "f16", "f32"}) {
    for (const std::string shape : {"[q,k]", "[b,1,1,k]", "[b,8,q,k]", "[1,8,1,k]", "[b,1,q,1]"}) {
      EXPECT_EQ(judged({.batch = 2, .queries = 2, .keys = 170, .depth = 64, .mask = type + shape}),
                "")
          << type << shape;
    }
  }
}

// Rows past the length of a cache are memory that nobody wrote.
TEST(FlashDecode, NothingPastTheLengthCounts) {
  for (const int64_t length : {0, 1, 15, 16, 129, 200, 260}) {
    const Decoder decoder(
        {.batch = 2, .keys = 260, .attributes = "causal=1, ", .has_lengths = true});
    std::vector<ReferenceTensor> inputs = decoder.inputs();
    decoder.input(inputs, "lengths").set_integer(0, length);
    for (const std::string name : {"k", "v"}) {
      ReferenceTensor& cache = decoder.input(inputs, name);
      for (int64_t i = 0; i < cache.elements(); ++i) {
        const int64_t row = i / 128 % 260, batch = i / (128 * 260 * 2);
        if (row >= (batch == 0 ? length : 259)) cache.set(i, NAN);
      }
    }
    EXPECT_EQ(decoder.disagrees(inputs), "") << length;
  }
}

TEST(FlashDecode, LengthsOutOfRangeAreThoseOfTheCache) {
  const Decoder decoder({.batch = 2, .keys = 70, .depth = 64, .has_lengths = true});
  std::vector<ReferenceTensor> inputs = decoder.inputs(), clamped = inputs;
  decoder.input(inputs, "lengths").set_integer(0, -7);
  decoder.input(clamped, "lengths").set_integer(0, 0);
  decoder.input(inputs, "lengths").set_integer(1, 1 << 30);
  decoder.input(clamped, "lengths").set_integer(1, 70);
  EXPECT_EQ(disagreement(decoder.results(inputs), decoder.results(clamped),
                         [](size_t, int64_t, double) { return 0.0; }),
            "");
  EXPECT_EQ(decoder.disagrees(clamped), "");
}

// Whoever arrives last adds in the order of the splits.
TEST(FlashDecode, ResultsAreTheSameInEveryRun) {
  const Decoder decoder({.batch = 2, .keys = 3000});
  const std::vector<ReferenceTensor> inputs = decoder.inputs(), once = decoder.results(inputs);
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(
        disagreement(decoder.results(inputs), once, [](size_t, int64_t, double) { return 0.0; }),
        "");
  }
}

TEST(FlashDecode, EveryConfig) {
  for (int rank = 0; rank < 8; ++rank) {
    const Decoder decoder({.batch = 2, .keys = 900, .has_lengths = true}, rank);
    EXPECT_EQ(decoder.disagrees(decoder.inputs()), "") << rank;
  }
}

TEST(FlashDecode, SplitKvFillsTheSmsOnce) {
  AttentionProblem problem;
  problem.attention.kv_heads = 8;
  problem.all_keys = 8192;
  const FlashDecodeConfig config{8, 16, 3, 1};
  for (const auto& [batch, splits] : {std::pair{1, 16}, {2, 8}, {8, 2}, {16, 1}, {32, 1}}) {
    problem.batch = batch;
    EXPECT_TRUE(config.split_kv(problem, 132).is(splits)) << batch;
    EXPECT_TRUE(config.spare_ctas(problem, 132).is(0)) << batch;
  }
  problem.batch = 1;
  problem.all_keys = 130;  // two stages
  EXPECT_TRUE(config.split_kv(problem, 132).is(2));
  EXPECT_TRUE(config.spare_ctas(problem, 132).is(1));  // for the new token
}

// What it does not take says why, and another kernel takes it.
TEST(FlashDecode, RefusalsSayWhy) {
  const auto reason = [](const DecodeCase& one) {
    const ir::Graph graph = ir::parse(one.text());
    const Settings settings = pipelined_settings();
    const Choice choice = select(graph, graph.node(graph.order().front()), settings);
    EXPECT_TRUE(choice.ok());
    for (const Verdict& verdict : choice.verdicts) {
      if (verdict.candidate == "flash_decode") return verdict.support.reason;
    }
    return std::string("was not asked");
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.type = "f32"}), "q is f32, not f16 or bf16");
  EXPECT_EQ(reason({.q_heads = 34, .kv_heads = 2}), "a GQA group of 17 heads is larger than 16");
  EXPECT_EQ(reason({.depth = 40}), "head_size 40 is not a multiple of 16 up to 256");
}

// A CTA counts in 32 bits from the first place of the mask that it reads.
TEST(FlashDecode, AMaskTooLongFor32BitsIsRefusedWhereItDecodes) {
  const DecodeCase one{.mask = "f16[b,8,q,k]"};
  const ir::Graph graph = ir::parse(one.text());
  const Settings settings = only_flash_decode();
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  ASSERT_TRUE(choice.ok()) << choice.reason();
  const Lowered lowered = choice.lower();
  const auto fits = [&](int64_t queries, int64_t keys) {
    const auto number = [&](std::string_view symbol) {
      return symbol == "q" ? queries : symbol == "k" ? keys : 1;
    };
    return std::ranges::all_of(lowered.sizes, [&](const SizeCheck& check) {
      return ir::holds(check.left.evaluate(number), check.relation, check.right.evaluate(number));
    });
  };
  // Four heads share keys: the last one's row begins three heads behind the first one's.
  EXPECT_TRUE(fits(1, (int64_t{1} << 31) / 3 - 1000));
  EXPECT_FALSE(fits(1, (int64_t{1} << 31) / 3 + 1));
  EXPECT_FALSE(fits(2, int64_t{1} << 29));
  EXPECT_TRUE(fits(64, int64_t{1} << 30)) << "other kernels run so many queries";
}

}  // namespace
}  // namespace tenon::kernels
