#include "kernels/llvm/attention/gpu_candidates.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/llvm/attention/flash_decode.h"
#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/flash_decode_token.h"
#include "kernels/llvm/attention/gpu_flash.h"
#include "kernels/llvm/attention/gpu_prefill.h"
#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/problem.h"

namespace tenon::kernels {
namespace {

Support supports_flash(const ir::Graph& graph, const ir::Node& node, const Settings&) {
  const DescribedAttention described = describe_attention(graph, node);
  if (!described.support) return described.support;
  if (described.problem.is_packed()) return Support::no("packed QKV is not supported");
  return Support::yes();
}

// The kernels that are made for one query and for many see each key once.
Support supports_one_walk(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const Support all = supports_flash(graph, node, settings);
  if (!all || !ir::Attention::from(node).rounds_probabilities()) return all;
  return Support::no("rounded probabilities need the softmax denominator first");
}

Support supports_prefilling(const ir::Graph& graph, const ir::Node& node,
                            const Settings& settings) {
  const Support all = supports_one_walk(graph, node, settings);
  if (!all) return all;
  return supports_prefill(graph, node, describe_attention(graph, node).problem, settings);
}

Support supports_flash_decoding(const ir::Graph& graph, const ir::Node& node,
                                const Settings& settings) {
  const Support all = supports_one_walk(graph, node, settings);
  if (!all) return all;
  return supports_flash_decode(graph, node, describe_attention(graph, node).problem, settings);
}

// Runs of one query may bring their token into the caches by themselves: place_heads then has
// nothing to do.
void leave_out_placing(Lowered& lowered, const Dim& wanted) {
  for (Launch& launch : lowered.launches) {
    if (!launch.elidable_copy) launch.tasks = launch.tasks * wanted;
  }
  std::erase_if(lowered.launches, [](const Launch& launch) { return launch.tasks.is(0); });
}

// Kernels of many queries read numbers: `fewest` queries or fewer take codes as they are.
ConfigChoice how_codes_are_read(const AttentionProblem& problem, int64_t fewest) {
  const Support direct =
      fewest == 0 ? Support::no("flash_decode does not run here") : reads_codes(problem);
  const std::string what(name(problem.attention.cache_type));
  if (!direct) return {"queries", what + " dequantised in a launch before: " + direct.reason, {}};
  return {fmt::format("queries > {}", fewest), what + " dequantised in a launch before", {}};
}

// Runs of up to most_flash_decode_queries() by flash-decoding, of some more by flash, of many by
// prefill; what does not decode or prefill leaves its queries to flash.
Lowered lower(const ir::Graph& graph, const ir::Node& node, const Settings& settings, bool decodes,
              bool prefills) {
  const AttentionProblem problem = describe_attention(graph, node).problem;
  Lowered lowered;
  lowered.sizes = size_checks(graph, problem, /*mask_has_all_keys=*/false);
  const int64_t fewest = decodes ? most_flash_decode_queries(problem) : 0;
  const bool takes_codes = reads_codes(problem).ok;
  const PlacedOperands placed =
      placed_operands(graph, node, problem, HeadTiles::for_gpu(),
                      takes_codes ? 1 - has_few_queries(problem, fewest) : Dim(1), lowered);
  const AttentionOperands& operands = placed.numbers;
  const AttentionOperands& few_operands = takes_codes ? placed.codes : placed.numbers;
  const auto add = [&](const Dim& wanted, const auto& launch) {
    if (!wanted.is(0)) lowered.launches.push_back(launch(wanted));
  };
  if (problem.attention.has_codes()) lowered.configs.push_back(how_codes_are_read(problem, fewest));
  const int64_t few = std::max(fewest, few_flash_queries(graph, node, problem, settings));
  const int64_t one = std::min<int64_t>(1, fewest);  // the case that matters most
  const bool adds_token = decodes && can_add_token(graph, node, problem).ok;
  if (adds_token) leave_out_placing(lowered, 1 - has_few_queries(problem, one));
  add(has_few_queries(problem, one), [&](const Dim& wanted) {
    return flash_decode_launch(graph, node, problem,
                               adds_token ? operands_of_past(problem) : few_operands, settings, one,
                               adds_token, wanted, lowered);
  });
  add(has_few_queries(problem, fewest) - has_few_queries(problem, one), [&](const Dim& wanted) {
    return flash_decode_launch(graph, node, problem, few_operands, settings, fewest,
                               /*adds_token=*/false, wanted, lowered);
  });
  add(has_few_queries(problem, few) - has_few_queries(problem, fewest), [&](const Dim& wanted) {
    return flash_launch(graph, node, problem, operands, settings, /*many=*/false, wanted);
  });
  add(1 - has_few_queries(problem, few), [&](const Dim& wanted) {
    return prefills ? prefill_launch(graph, node, problem, operands, settings, wanted)
                    : flash_launch(graph, node, problem, operands, settings, /*many=*/true, wanted);
  });
  check_lengths(problem, lowered);
  return lowered;
}

Lowered lower_flash(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  return lower(graph, node, settings, /*decodes=*/false, /*prefills=*/false);
}

Lowered lower_prefill(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  return lower(graph, node, settings, /*decodes=*/false, /*prefills=*/true);
}

Lowered lower_flash_decode(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const bool prefills = supports_prefilling(graph, node, settings).ok;
  return lower(graph, node, settings, /*decodes=*/true, prefills);
}

}  // namespace

std::span<const Candidate> gpu_attention_candidates() {
  static constexpr std::array<Candidate, 3> table = {{
      {"flash_decode", supports_flash_decoding, lower_flash_decode},
      {"prefill", supports_prefilling, lower_prefill},
      {"flash", supports_flash, lower_flash},
  }};
  return table;
}

}  // namespace tenon::kernels
