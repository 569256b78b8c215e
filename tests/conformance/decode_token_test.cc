// A step of decoding as one launch, against float64: its token is rotated, goes into the caches and
// is seen by its own query. Interpreted where there is no GPU.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/attention_problem.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

// One new token of each batch row behind a past of open length.
struct StepCase {
  std::string type = "f16";
  int64_t batch = 2, past = 40;
  int64_t q_heads = 8, kv_heads = 2, depth = 128;
  std::string queries = "1";      // "s": open
  std::string present = "p + 1";  // "p": the cache keeps its size
  int64_t angles = 0;             // 0: no rotary
  bool has_lengths = false, has_positions = false, has_sinks = false, has_norms = false;
  std::string mask = "";  // its type and shape
  std::string attributes = "";
  std::vector<int64_t> lengths = {};

  std::string text() const {
    const auto heads = [&](int64_t count, const std::string& rows) {
      return type + "[b," + std::to_string(count) + "," + rows + "," + std::to_string(depth) + "]";
    };
    std::string out = "graph step {\n  input %q: " + heads(q_heads, queries) +
                      "\n  input %k: " + heads(kv_heads, queries) +
                      "\n  input %v: " + heads(kv_heads, queries) +
                      "\n  input %past_k: " + heads(kv_heads, "p") +
                      "\n  input %past_v: " + heads(kv_heads, "p") + "\n";
    const std::string table = type + "[600," + std::to_string(angles) + "]";
    if (has_lengths) out += "  input %lengths: i32[b]\n";
    if (has_sinks) out += "  input %sinks: " + type + "[" + std::to_string(q_heads) + "]\n";
    if (angles > 0) out += "  input %cos: " + table + "\n  input %sin: " + table + "\n";
    if (has_positions) out += "  input %positions: i64[b," + queries + "]\n";
    if (!mask.empty()) out += "  input %mask: " + mask + "\n";
    const std::string weight = type + "[" + std::to_string(depth) + "]\n";
    if (has_norms) out += "  input %q_norm: " + weight + "  input %k_norm: " + weight;
    const auto optional = [](bool there, const char* name) {
      return std::string(", ") + (there ? name : "_");
    };
    const std::string rows = queries == "1" ? present : "p + s";
    return out + "  %y: " + heads(q_heads, queries) + ", %present_k: " + heads(kv_heads, rows) +
           ", %present_v: " + heads(kv_heads, rows) + " = tenon::Attention(%q, %k, %v" +
           optional(!mask.empty(), "%mask") + ", %past_k, %past_v" +
           optional(has_lengths, "%lengths") + optional(has_sinks, "%sinks") +
           optional(angles > 0, "%cos") + optional(angles > 0, "%sin") +
           optional(has_positions, "%positions") + optional(has_norms, "%q_norm") +
           optional(has_norms, "%k_norm") + ") {" + attributes +
           "kv_heads=" + std::to_string(kv_heads) + ", q_heads=" + std::to_string(q_heads) +
           "}\n  output %y\n  output %present_k\n  output %present_v\n}\n";
  }
};

class Step {
 public:
  explicit Step(const StepCase& one) : case_(one), graph_(ir::parse(one.text())) {
    settings_ = pipelined_settings();
    settings_.tuning.candidate = "flash_decode";
    executable_ = build_for_test(graph_, settings_);
  }

  std::vector<ReferenceTensor> inputs(int64_t queries = 1) const {
    std::mt19937 random(5);
    std::vector<ReferenceTensor> made;
    for (const ir::ValueId id : graph_.inputs()) {
      const ir::Value& value = graph_.value(id);
      std::vector<int64_t> dims;
      for (const Dim& dim : *value.shape) {
        dims.push_back(dim.evaluate([&](std::string_view symbol) {
          return symbol == "b" ? case_.batch : symbol == "p" ? case_.past : queries;
        }));
      }
      ReferenceTensor tensor = random_tensor(value.dtype, dims, random);
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        if (value.name == "lengths")
          tensor.set_integer(i, case_.lengths.at(static_cast<size_t>(i)));
        if (value.name == "positions") tensor.set_integer(i, (i * 37 + 11) % 600);
      }
      made.push_back(std::move(tensor));
    }
    return made;
  }

  std::string disagrees(int64_t queries = 1) const {
    const std::vector<ReferenceTensor> given = inputs(queries);
    const Tolerance of_attention = attention_tolerance(graph_);
    // Keys that are normed or rotated are rounded once; the others are copied.
    const double rotated = case_.angles > 0 || case_.has_norms ? 1e-2 : 0;
    return disagreement(run(*executable_, graph_, given), reference::evaluate(graph_, given),
                        [&](size_t output, int64_t index, double expected) {
                          return output == 0   ? of_attention(output, index, expected)
                                 : output == 1 ? rotated * std::fabs(expected)
                                               : 0;
                        });
  }

  std::vector<std::string> launches() const {
    const ir::Node& node = graph_.node(graph_.order().front());
    const Lowered lowered = select(graph_, node, settings_).lower();
    std::vector<std::string> names;
    for (const Launch& launch : lowered.launches) names.push_back(launch.kernel.name);
    return names;
  }

  const ir::Graph& graph() const { return graph_; }
  Executable& executable() const { return *executable_; }

 private:
  StepCase case_;
  ir::Graph graph_;
  Settings settings_;
  std::unique_ptr<Executable> executable_;
};

std::string judged(const StepCase& one) { return Step(one).disagrees(); }

TEST(DecodeToken, OneLaunchBesideTheCopiesOfAPastThatIsNotShared) {
  const Step step({.angles = 64, .has_positions = true});
  EXPECT_EQ(step.launches(), (std::vector<std::string>{"copy_past", "copy_past", "flash_decode"}));
}

TEST(DecodeToken, CachesThatGrow) {
  for (const int64_t past : {0, 1, 15, 16, 127, 128, 300}) {
    EXPECT_EQ(judged({.past = past}), "") << past;
    EXPECT_EQ(judged({.past = past, .attributes = "causal=1, "}), "") << past;
  }
}

TEST(DecodeToken, CachesThatKeepTheirSize) {
  for (const std::string rule : {"", "causal=1, ", "causal_top_left=1, "}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1, 200}, {0, 17}, {129, 2}, {200, 199}}) {
      EXPECT_EQ(judged({.past = 200,
                        .present = "p",
                        .has_lengths = true,
                        .attributes = rule,
                        .lengths = lengths}),
                "")
          << rule << lengths[0] << " " << lengths[1];
    }
  }
}

TEST(DecodeToken, RotaryOfEveryForm) {
  for (const std::string pairs : {"", "interleaved=1, "}) {
    for (const int64_t angles : {8, 32, 64}) {
      for (const bool positions : {false, true}) {
        for (const std::string type : {"f16", "bf16"}) {
          EXPECT_EQ(judged({.type = type,
                            .past = 130,
                            .present = "p",
                            .angles = angles,
                            .has_lengths = true,
                            .has_positions = positions,
                            .attributes = pairs + "causal=1, ",
                            .lengths = {3, 130}}),
                    "")
              << pairs << angles << positions << type;
        }
      }
    }
  }
}

TEST(DecodeToken, HeadsWindowsCapsAndSinks) {
  for (const auto& [q_heads, kv_heads, depth] :
       {std::tuple{4, 4, 64}, {7, 1, 96}, {16, 2, 256}, {16, 1, 80}}) {
    if (depth > longest_heads()) continue;
    for (const std::string rule :
         {"causal=1, left_window=20, ", "softcap=1.5, ", "causal=1, scale=0.3, "}) {
      EXPECT_EQ(judged({.past = 150,
                        .q_heads = q_heads,
                        .kv_heads = kv_heads,
                        .depth = depth,
                        .angles = depth / 4,
                        .has_lengths = true,
                        .has_sinks = true,
                        .attributes = rule,
                        .lengths = {151, 33}}),
                "")
          << q_heads << " " << depth << rule;
    }
  }
}

TEST(DecodeToken, NormsOfHeads) {
  for (const auto& [q_heads, kv_heads, depth] :
       {std::tuple{8, 2, 128}, {4, 4, 64}, {16, 2, 256}, {7, 1, 80}}) {
    if (depth > longest_heads()) continue;
    for (const std::string type : {"f16", "bf16"}) {
      for (const int64_t angles : {int64_t{0}, int64_t{depth} / 4, int64_t{depth} / 2}) {
        const StepCase one = {.type = type,
                              .past = 150,
                              .q_heads = q_heads,
                              .kv_heads = kv_heads,
                              .depth = depth,
                              .present = "p",
                              .angles = angles,
                              .has_lengths = true,
                              .has_norms = true,
                              .attributes = "causal=1, norm_epsilon=0.01, ",
                              .lengths = {150, 33}};
        EXPECT_EQ(judged(one), "") << type << " " << depth << " " << angles;
      }
    }
  }
  EXPECT_EQ(Step({.angles = 64, .has_positions = true, .has_norms = true}).launches(),
            (std::vector<std::string>{"copy_past", "copy_past", "flash_decode"}));
}

// As exporters write it: the mask is made for all keys, the new one too.
TEST(DecodeToken, Masks) {
  for (const std::string mask : {"bool[b,1,1,p + 1]", "f16[1,1,1,p + 1]", "f16[b,8,1,p + 1]",
                                 "bool[1,8,1,1]", "f32[b,1,1,p + 1]"}) {
    for (const int64_t past : {0, 1, 150}) {
      EXPECT_EQ(judged({.past = past, .mask = mask}), "") << mask << " " << past;
      EXPECT_EQ(judged({.past = past,
                        .angles = 64,
                        .has_positions = true,
                        .has_norms = true,
                        .mask = mask,
                        .attributes = "left_window=100, "}),
                "")
          << mask << " " << past;
    }
  }
  EXPECT_EQ(Step({.mask = "bool[b,1,1,p + 1]"}).launches(),
            (std::vector<std::string>{"copy_past", "copy_past", "flash_decode"}));
}

// The same node serves prefill: then another kernel places the heads.
TEST(DecodeToken, SeveralTokensArePlacedFirst) {
  const Step step({.past = 20, .queries = "s", .angles = 32, .has_positions = true});
  for (const int64_t queries : {1, 2, 4, 5, 40}) {
    EXPECT_EQ(step.disagrees(queries), "") << queries;
  }
}

// Past and present in one memory: behind the new row stays what was there.
TEST(DecodeToken, CachesInPlace) {
  const Step step({.past = 150,
                   .present = "p",
                   .angles = 64,
                   .has_lengths = true,
                   .attributes = "causal=1, ",
                   .lengths = {149, 20}});
  class InPlace final : public RunContext {
   public:
    explicit InPlace(const std::vector<ReferenceTensor>& inputs) : inputs_(inputs) {
      for (const ReferenceTensor& input : inputs) {
        places_.push_back(TestMemory::holding(input.bytes()));
      }
      y_ = TestMemory::poisoned(inputs[0].bytes().size());
    }
    Input input(size_t index) override { return {places_[index]->data(), inputs_[index].dims}; }
    void* output(size_t index, std::span<const int64_t>) override {
      return index == 0 ? y_->data() : places_[2 + index]->data();
    }
    void parallel_for(int64_t total, int64_t,
                      const std::function<void(int64_t, int64_t)>& fn) override {
      fn(0, total);
    }
    ReferenceTensor result(size_t index) {
      const ReferenceTensor& as = inputs_[index == 0 ? 0 : 2 + index];
      TestMemory& memory = index == 0 ? *y_ : *places_[2 + index];
      return ReferenceTensor::from_bytes(as.dtype, as.dims, memory.read().data());
    }

   private:
    const std::vector<ReferenceTensor>& inputs_;
    std::vector<std::unique_ptr<TestMemory>> places_;
    std::unique_ptr<TestMemory> y_;
  };
  const std::vector<ReferenceTensor> inputs = step.inputs();
  const std::vector<ReferenceTensor> apart = run(step.executable(), step.graph(), inputs);
  InPlace context(inputs);
  step.executable().run(context);
  const Tolerance exact = [](size_t, int64_t, double) { return 0.0; };
  EXPECT_EQ(disagreement({context.result(0)}, {apart[0]}, exact), "");
  for (const size_t cache : {1, 2}) {
    ReferenceTensor expected = inputs[2 + cache];
    for (int64_t i = 0; i < expected.elements(); ++i) {
      const int64_t row = i / 128 % 150, batch = i / (128 * 150 * 2);
      if (row == (batch == 0 ? 148 : 19)) expected.set(i, apart[cache].number(i));
    }
    EXPECT_EQ(disagreement({context.result(cache)}, {expected}, exact), "");
  }
}

}  // namespace
}  // namespace tenon::kernels
