// Queries that see no key: NaN where a softmax of the graph would give it, 0 where the graph says
// so.
#include <cmath>
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
  EXPECT_EQ(select(fused, node, settings).chosen->name, candidate);
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
  judge(guard, settings, "split_keys");  // few queries; more by prefill
  settings.only_candidate = "flash";
  judge(guard, settings, "flash");
  if (!conformance_settings().gpu) judge(guard, conformance_settings(), "one_pass");
}

TEST(HiddenRows, AreNanAsInASoftmax) { judge_every_kernel(Guard::kNone); }
TEST(HiddenRows, AreZeroWhereTheGraphSaysSo) { judge_every_kernel(Guard::kToZero); }

}  // namespace
}  // namespace tenon::kernels
