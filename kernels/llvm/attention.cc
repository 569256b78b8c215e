#include "kernels/llvm/attention.h"

#include <array>
#include <limits>

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/one_pass.h"
#include "kernels/llvm/attention/problem.h"

namespace tenon::kernels {
namespace {

Lowered lower_one_pass(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                       const AttentionProblem& problem) {
  Lowered lowered;
  lowered.sizes = size_checks(graph, problem, /*mask_has_all_keys=*/true);
  const AttentionOperands operands =
      widened_operands(graph, node, problem, HeadTiles::for_host(problem), lowered);
  for (Launch& launch : one_pass_launches(graph, node, problem, operands, settings.host)) {
    lowered.launches.push_back(std::move(launch));
  }
  check_lengths(problem, lowered);
  return lowered;
}

Planned plan_one_pass(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedAttention described = describe_attention(graph, node);
  if (!described.support) return described.support;
  const AttentionProblem& problem = described.problem;
  if (problem.depth > kMaxDepth || problem.value_depth > kMaxDepth) {
    return Planned::no("head_size is above " + std::to_string(kMaxDepth));
  }
  return Plan::of({Skeleton::kHostAttention}, [&graph, &node, &settings, problem] {
    return lower_one_pass(graph, node, settings, problem);
  });
}

}  // namespace

std::span<const Candidate> attention_candidates() {
  static constexpr std::array<Candidate, 1> table = {{
      {"one_pass", plan_one_pass},
  }};
  return table;
}

}  // namespace tenon::kernels
