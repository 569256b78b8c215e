// Queries that see no key: NaN where a softmax of the graph would give it, 0 where the graph says
// so.
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

enum class Guard { kNone, kToZero };

ir::Graph masked_attention(Guard guard) {
  const std::string guarded = R"(  %nan: bool[b,4,s,t] = IsNaN@20(%softmax)
  %p: f16[b,4,s,t] = Where@16(%nan, %zero, %softmax)
)";
  const std::string plain = "  %p: f16[b,4,s,t] = Cast@13(%softmax) {to=10}\n";
  return ir::parse(R"(graph masked {
  input %q: f16[b,4,s,64]
  input %k: f16[b,4,t,64]
  input %v: f16[b,4,t,64]
  input %mask: f16[b,1,s,t]
  const %eighth: f16[] = hex:0030
  const %zero: f16[] = hex:0000
  %kt: f16[b,4,64,t] = Transpose@13(%k) {perm=[0,1,3,2]}
  %qk: f16[b,4,s,t] = MatMul@13(%q, %kt)
  %scaled: f16[b,4,s,t] = Mul@14(%qk, %eighth)
  %masked: f16[b,4,s,t] = Add@14(%scaled, %mask)
  %softmax: f16[b,4,s,t] = Softmax@13(%masked) {axis=-1}
)" + (guard == Guard::kNone ? plain : guarded) +
                   R"(  %y: f16[b,4,s,64] = MatMul@13(%p, %v)
  output %y
})");
}

// Every third query sees no key.
std::vector<ReferenceTensor> inputs_for(int64_t queries, int64_t keys) {
  std::mt19937 random(3);
  std::vector<ReferenceTensor> inputs = {random_tensor(DType::kF16, {2, 4, queries, 64}, random),
                                         random_tensor(DType::kF16, {2, 4, keys, 64}, random),
                                         random_tensor(DType::kF16, {2, 4, keys, 64}, random)};
  ReferenceTensor mask = ReferenceTensor::zeros(DType::kF16, {2, 1, queries, keys});
  for (int64_t i = 0; i < mask.elements(); ++i) {
    const bool hidden = i / keys % 3 == 0 || i % 5 == 0;
    mask.set(i, hidden ? -INFINITY : 0.5);
  }
  inputs.push_back(std::move(mask));
  return inputs;
}

void judge(Guard guard, const Settings& settings, const std::string& candidate) {
  const ir::Graph graph = masked_attention(guard);
  const ir::Graph fused = fuse(graph);
  ASSERT_EQ(fused.order().size(), 1u) << ir::print(fused);
  const ir::Node& node = fused.node(fused.order().front());
  EXPECT_EQ(ir::Attention::from(node).nan_without_keys, guard == Guard::kNone);
  EXPECT_EQ(select(fused, node, settings).chosen(), candidate);
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 40}, {3, 200}, {40, 130}, {150, 70}, {2, 0}}) {
    const std::vector<ReferenceTensor> inputs = inputs_for(queries, keys);
    EXPECT_EQ(disagreement(run(*executable, fused, inputs), reference::evaluate(graph, inputs),
                           [](size_t, int64_t, double) { return 5e-3; }),
              "")
        << queries << " queries, " << keys << " keys";
  }
}

void judge_every_kernel(Guard guard) {
  Settings settings = pipelined_settings();
  judge(guard, settings, "flash_decode");  // few queries; more by prefill
  settings.tuning.candidate = "flash";
  judge(guard, settings, "flash");
  if (!conformance_settings().gpu) judge(guard, conformance_settings(), "one_pass");
}

// What stands between the scaled scores and the softmax; %low is the fill.
struct FiniteMask {
  const char* name;
  const char* nodes;
  double fill;
};

constexpr const char* kWhere = "  %masked: f32[b,4,s,t] = Where@16(%keep, %scaled, %low)\n";
constexpr const char* kSumThenWhere = R"(  %sum: f32[b,4,s,t] = Add@14(%scaled, %bias)
  %masked: f32[b,4,s,t] = Where@16(%keep, %sum, %low)
)";
constexpr const char* kWhereThenSum = R"(  %part: f32[b,4,s,t] = Where@16(%keep, %scaled, %low)
  %masked: f32[b,4,s,t] = Add@14(%part, %bias)
)";
constexpr const char* kSum = R"(  %zero: f32[] = Constant@13() {value_float=0.0}
  %added: f32[b,1,s,t] = Where@16(%keep, %zero, %low)
  %masked: f32[b,4,s,t] = Add@14(%scaled, %added)
)";
constexpr double kLowest = -std::numeric_limits<float>::max();
constexpr FiniteMask kFiniteMasks[] = {
    {"-1e4 by Where", kWhere, -1e4},
    {"-1 by Where", kWhere, -1},
    {"the lowest by Where", kWhere, kLowest},
    {"-1e4 behind a sum", kSumThenWhere, -1e4},
    {"the lowest behind a sum", kSumThenWhere, kLowest},
    {"the lowest before a sum", kWhereThenSum, kLowest},
    {"the lowest added", kSum, kLowest},
};

ir::Graph finite_attention(const FiniteMask& mask, const char* type) {
  const std::string half = type;
  ir::Graph graph = ir::parse(R"(graph masked {
  input %q: )" + half + R"([b,4,s,64]
  input %k: )" + half + R"([b,4,t,64]
  input %v: )" + half + R"([b,4,t,64]
  input %keep: bool[b,1,s,t]
  input %bias: f32[1,1,1,t]
  input %low: f32[]
  const %eighth: f32[] = hex:0000003e
  %kt: )" + half + R"([b,4,64,t] = Transpose@13(%k) {perm=[0,1,3,2]}
  %qk: )" + half + R"([b,4,s,t] = MatMul@13(%q, %kt)
  %wide: f32[b,4,s,t] = Cast@13(%qk) {to=1}
  %scaled: f32[b,4,s,t] = Mul@14(%wide, %eighth)
)" + mask.nodes + R"(  %softmax: f32[b,4,s,t] = Softmax@13(%masked) {axis=-1}
  %p: )" + half + R"([b,4,s,t] = Cast@13(%softmax) {to=)" +
                              (half == "f16" ? "10" : "1") + R"(}
  %y: )" + half + R"([b,4,s,64] = MatMul@13(%p, %v)
  output %y
})");
  return graph;
}

// Every third query keeps no key; hidden keys of the first query have scores of thousands.
std::vector<ReferenceTensor> finite_inputs(int64_t queries, int64_t keys, DType dtype) {
  std::mt19937 random(3);
  std::vector<ReferenceTensor> inputs = {random_tensor(dtype, {2, 4, queries, 64}, random),
                                         random_tensor(dtype, {2, 4, keys, 64}, random),
                                         random_tensor(dtype, {2, 4, keys, 64}, random)};
  ReferenceTensor keep = ReferenceTensor::zeros(DType::kBool, {2, 1, queries, keys});
  for (int64_t i = 0; i < keep.elements(); ++i) {
    const int64_t query = i / keys % queries;
    keep.set_integer(i, query % 3 != 2 && i % keys % 5 != 0);
  }
  for (int64_t i = 0; i < inputs[1].elements(); ++i) {
    if (i / 64 % keys % 5 == 0) inputs[1].set(i, inputs[1].number(i) * 512);
  }
  inputs.push_back(std::move(keep));
  inputs.push_back(random_tensor(DType::kF32, {1, 1, 1, keys}, random));
  return inputs;
}

// The fill as a constant.
ir::Graph with_fill(ir::Graph graph, double fill) {
  ir::Graph filled = std::move(graph);
  const ir::ValueId low = filled.find("low");
  filled.replace_uses(low, filled.add_constant("fill", ir::Tensor::of(DType::kF32, {}, {fill})));
  return filled;
}

void judge_finite(const Settings& settings, const std::string& candidate, const char* type) {
  for (const FiniteMask& mask : kFiniteMasks) {
    const ir::Graph graph = with_fill(finite_attention(mask, type), mask.fill);
    const ir::Graph fused = fuse(graph);
    const ir::Node& node = fused.node(fused.order().back());
    ASSERT_TRUE(node.is(ir::kAttention)) << mask.name << ir::print(fused);
    EXPECT_EQ(select(fused, node, settings).chosen(), candidate);
    const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
    for (const auto& [queries, keys] :
         {std::pair<int64_t, int64_t>{1, 40}, {3, 200}, {40, 130}, {150, 70}}) {
      std::vector<ReferenceTensor> inputs =
          finite_inputs(queries, keys, std::string(type) == "f16" ? DType::kF16 : DType::kF32);
      inputs.push_back(ReferenceTensor::of(DType::kF32, {}, {mask.fill}));
      EXPECT_EQ(disagreement(run(*executable, fused, inputs), reference::evaluate(graph, inputs),
                             [](size_t, int64_t, double) { return 5e-3; }),
                "")
          << mask.name << ", " << queries << " queries, " << keys << " keys";
    }
  }
}

TEST(HiddenRows, WeighAlikeUnderAFiniteFill) {
  Settings settings = pipelined_settings();
  judge_finite(settings, "flash_decode", "f16");  // few queries; more by prefill
  judge_finite(settings, "flash", "f32");
  if (!conformance_settings().gpu) judge_finite(conformance_settings(), "one_pass", "f32");
}

TEST(HiddenRows, AreNanAsInASoftmax) { judge_every_kernel(Guard::kNone); }
TEST(HiddenRows, AreZeroWhereTheGraphSaysSo) { judge_every_kernel(Guard::kToZero); }

}  // namespace
}  // namespace tenon::kernels
