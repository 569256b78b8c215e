// Attention over caches of codes (int8, fp8, 4 bits) against float64, through every candidate: past
// codes are read, new keys become codes, rows behind them stay out. Interpreted where there is no
// GPU.
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

struct CodedCase {
  std::string type = "f16", codes = "i8";
  bool per_channel = false;
  int64_t q_heads = 4, kv_heads = 2, depth = 64;
  bool grows = false;  // present has past's rows and the new ones; else past's, cut by lengths
  bool turns = false;
  bool has_present = true;
  bool is_masked = false;
  std::string attributes = "causal_top_left=1, ";
  bool keys_are_large = false;  // in one channel, beside queries that are large in all

  int64_t width() const { return codes == "i4" ? depth / 2 : depth; }
  std::string text() const {
    const auto tensor = [](const std::string& dtype, int64_t heads, const std::string& rows,
                           int64_t columns) {
      return dtype + "[b," + std::to_string(heads) + "," + rows + "," + std::to_string(columns) +
             "]";
    };
    const std::string stored = codes == "i4" ? "u8" : codes;
    const std::string scale =
        per_channel ? "f32[1," + std::to_string(kv_heads) + ",1," + std::to_string(depth) + "]"
                    : "f32[1]";
    const std::string past = tensor(stored, kv_heads, "p", width());
    const std::string present = tensor(stored, kv_heads, grows ? "p + s" : "p", width());
    const std::string table = type + "[600," + std::to_string(depth / 2) + "]";
    std::string out = "graph coded {\n  input %q: " + tensor(type, q_heads, "s", depth) +
                      "\n  input %k: " + tensor(type, kv_heads, "s", depth) +
                      "\n  input %v: " + tensor(type, kv_heads, "s", depth) +
                      "\n  input %past_k: " + past + "\n  input %past_v: " + past +
                      "\n  input %lengths: i32[b]\n  input %k_scale: " + scale +
                      "\n  input %v_scale: " + scale + "\n";
    if (is_masked) out += "  input %mask: " + type + "[b,1,s," + (grows ? "p + s]\n" : "p]\n");
    if (turns) out += "  input %cos: " + table + "\n  input %sin: " + table + "\n";
    out += "  %y: " + tensor(type, q_heads, "s", depth);
    if (has_present) out += ", %present_k: " + present + ", %present_v: " + present;
    return out + " = tenon::Attention(%q, %k, %v, " + (is_masked ? "%mask" : "_") +
           ", %past_k, %past_v, %lengths, _, " + (turns ? "%cos, %sin" : "_, _") +
           ", _, _, _, %k_scale, %v_scale) {" + attributes + "cache_type=\"" + codes +
           "\", kv_heads=" + std::to_string(kv_heads) + ", q_heads=" + std::to_string(q_heads) +
           "}\n  output %y\n" +
           (has_present ? "  output %present_k\n  output %present_v\n}\n" : "}\n");
  }
};

struct Sizes {
  int64_t b, s, p;
  std::vector<int64_t> lengths;  // of each batch row, the new tokens among them
};

class Coded {
 public:
  explicit Coded(const CodedCase& one, const Settings& settings, const std::string& candidate)
      : case_(one), graph_(ir::parse(one.text())) {
    Settings here = settings;
    here.tuning.candidate = candidate;
    executable_ = build_for_test(graph_, here);
  }

  std::vector<ReferenceTensor> inputs(const Sizes& sizes) const {
    std::mt19937 random(3);
    std::vector<ReferenceTensor> made;
    for (const ir::ValueId id : graph_.inputs()) {
      const ir::Value& value = graph_.value(id);
      std::vector<int64_t> dims;
      for (const Dim& dim : *value.shape) {
        dims.push_back(dim.evaluate([&](std::string_view symbol) {
          return symbol == "b" ? sizes.b : symbol == "s" ? sizes.s : sizes.p;
        }));
      }
      ReferenceTensor tensor = random_tensor(value.dtype, dims, random);
      for (int64_t i = 0; i < tensor.elements(); ++i) fill(value.name, i, sizes, random, tensor);
      made.push_back(std::move(tensor));
    }
    return made;
  }

  std::vector<ReferenceTensor> results(const Sizes& sizes) const {
    return run(*executable_, graph_, inputs(sizes));
  }

  std::string disagrees(const Sizes& sizes) const {
    const std::vector<ReferenceTensor> given = inputs(sizes);
    const Tolerance of_attention = attention_tolerance(graph_);
    return disagreement(run(*executable_, graph_, given), reference::evaluate(graph_, given),
                        [&](size_t output, int64_t index, double expected) {
                          return output == 0 ? of_attention(output, index, expected) : 0;
                        });
  }

 private:
  // Numbers of the cache reach about 4; turns are by quarters, so that codes come out to the bit.
  void fill(const std::string& name, int64_t i, const Sizes& sizes, std::mt19937& random,
            ReferenceTensor& tensor) const {
    const double unit = static_cast<double>(random() % 1024) / 1024;
    const double full = case_.codes == "i4" ? 8 : case_.codes == "i8" ? 128 : 448;
    if (name == "lengths") tensor.set_integer(i, sizes.lengths.at(static_cast<size_t>(i)));
    if (name == "k_scale" || name == "v_scale") tensor.set(i, (2 + 2 * unit) / full);
    if (case_.keys_are_large && name == "k_scale") {
      tensor.set(i, 60000 / full * (i == 0 ? 1 : 0x1p-14 * (1 + unit)));
    }
    if (case_.keys_are_large && name == "q") tensor.set(i, 64 * tensor.number(i));
    if (tensor.dtype == DType::kF8E4M3FN) {
      tensor.set(i, decode(tensor.dtype, encode(tensor.dtype, (2 * unit - 1) * full)));
    }
    if (name != "cos" && name != "sin") return;
    const int64_t quarter = (i * 7 + i / 11) % 4, shifted = name == "cos" ? quarter : quarter + 3;
    tensor.set(i, std::array{1.0, 0.0, -1.0, 0.0}[static_cast<size_t>(shifted % 4)]);
  }

  CodedCase case_;
  ir::Graph graph_;
  std::unique_ptr<Executable> executable_;
};

// Every candidate of the host, or of a GPU.
void judge(const CodedCase& one, const std::vector<Sizes>& all_sizes, const Settings& settings) {
  const ir::Graph graph = ir::parse(one.text());
  size_t ran = 0;
  for (const auto& [name, support] :
       select(graph, graph.node(graph.order().front()), settings).verdicts) {
    if (!support) continue;
    ++ran;
    const Coded coded(one, settings, std::string(name));
    for (const Sizes& sizes : all_sizes) {
      EXPECT_EQ(coded.disagrees(sizes), "") << name << " s=" << sizes.s << " p=" << sizes.p << "\n"
                                            << one.text();
    }
  }
  EXPECT_GT(ran, 0u) << one.text();
}

void judge_everywhere(const CodedCase& one, const std::vector<Sizes>& sizes) {
  judge(one, sizes, conformance_settings());
  if (!conformance_settings().gpu) judge(one, sizes, pipelined_settings());
}

constexpr std::array kCodes{"i8", "f8e4m3fn", "i4"};

TEST(CodedCache, DecodeAndPrefillOfEveryFormat) {
  for (const std::string codes : kCodes) {
    for (const bool per_channel : {false, true}) {
      judge_everywhere({.codes = codes, .per_channel = per_channel, .turns = true},
                       {{2, 1, 70, {70, 3}}, {1, 20, 40, {33}}, {2, 2, 33, {2, 33}}});
    }
  }
}

TEST(CodedCache, CachesThatGrow) {
  for (const std::string codes : kCodes) {
    judge_everywhere({.codes = codes, .grows = true}, {{1, 1, 0, {1}}, {2, 3, 17, {20, 9}}});
  }
}

TEST(CodedCache, NobodyAsksForTheCache) {
  for (const std::string codes : kCodes) {
    judge_everywhere({.codes = codes, .grows = true, .has_present = false}, {{1, 3, 17, {20}}});
  }
}

TEST(CodedCache, OtherTypesAndHeads) {
  for (const std::string type : {"f32", "bf16"}) {
    for (const std::string codes : kCodes) {
      judge_everywhere({.type = type, .codes = codes, .per_channel = true, .depth = 40},
                       {{1, 1, 30, {30}}, {2, 4, 30, {4, 17}}});
      judge_everywhere({.type = type, .codes = codes, .q_heads = 3, .kv_heads = 3, .depth = 128},
                       {{1, 1, 90, {90}}, {1, 70, 90, {71}}});
    }
  }
}

TEST(CodedCache, WindowsAndCaps) {
  for (const std::string rule : {"causal_top_left=1, left_window=9, ", "softcap=1.5, "}) {
    judge_everywhere({.codes = "i8", .per_channel = true, .attributes = rule},
                     {{1, 1, 60, {44}}, {1, 18, 60, {60}}});
  }
}

// Heads that share keys, of sizes that fill no TMA box, one query and a few; with a mask nobody
// brings the token along.
TEST(CodedCache, StepsOfManyHeads) {
  for (const std::string codes : kCodes) {
    for (const auto& [q_heads, kv_heads, depth] :
         {std::tuple{16, 1, 128}, {7, 1, 96}, {2, 2, 32}, {8, 2, 64}}) {
      for (const bool is_masked : {false, true}) {
        judge_everywhere({.codes = codes,
                          .per_channel = depth != 64,
                          .q_heads = q_heads,
                          .kv_heads = kv_heads,
                          .depth = depth,
                          .turns = true,
                          .is_masked = is_masked},
                         {{2, 1, 150, {150, 17}}, {1, 2, 70, {69}}, {1, 1, 300, {257}}});
      }
    }
  }
}

// Queries times such scales are beyond f16, and those of the other channels below it.
TEST(CodedCache, ScalesThatAreFarApart) {
  for (const std::string codes : kCodes) {
    judge_everywhere({.codes = codes,
                      .per_channel = true,
                      .attributes = "causal_top_left=1, scale=0.0000001, ",
                      .keys_are_large = true},
                     {{1, 1, 70, {70}}});
  }
}

// Lengths out of range: the cache's end is never passed, as with caches of numbers.
void expect_lengths_are_cut(const CodedCase& one, const Settings& settings) {
  const ir::Graph graph = ir::parse(one.text());
  const Tolerance exact = [](size_t, int64_t, double) { return 0.0; };
  for (const auto& [name, support] :
       select(graph, graph.node(graph.order().front()), settings).verdicts) {
    if (!support) continue;
    const Coded coded(one, settings, std::string(name));
    for (const int64_t tokens : {1, 2, 20}) {
      const auto results = [&](int64_t length) { return coded.results({1, tokens, 22, {length}}); };
      EXPECT_EQ(disagreement(results(1000), results(22), exact), "") << name << one.codes;
      EXPECT_EQ(disagreement(results(-7), results(0), exact), "") << name << one.codes;
    }
  }
}

TEST(CodedCache, LengthsBeyondTheCacheCountAsItsLastRow) {
  for (const std::string codes : kCodes) {
    expect_lengths_are_cut({.codes = codes}, conformance_settings());
    if (!conformance_settings().gpu) expect_lengths_are_cut({.codes = codes}, pipelined_settings());
  }
}

TEST(CodedCache, RefusesScalesThatFitNoHead) {
  std::string text = CodedCase{}.text();
  const std::string scale = "%k_scale: f32[1]";
  text.replace(text.find(scale), scale.size(), "%k_scale: f32[3]");
  const ir::Graph graph = ir::parse(text);
  const Support answer = runs(graph, conformance_settings());
  EXPECT_FALSE(answer.ok);
  EXPECT_NE(answer.reason.find("3 KV scales for 2 heads of 64"), std::string::npos)
      << answer.reason;
}

}  // namespace
}  // namespace tenon::kernels
