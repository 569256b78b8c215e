#include "kernels/llvm/attention/gpu_candidates.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "kernels/llvm/attention/flash_decode.h"
#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/flash_decode_support.h"
#include "kernels/llvm/attention/flash_decode_token.h"
#include "kernels/llvm/attention/gpu_flash.h"
#include "kernels/llvm/attention/gpu_prefill.h"
#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/planning/wanted_config.h"

namespace tenon::kernels {
namespace {

// Rounded probabilities need the softmax denominator first; the kernels that are made for one query
// and for many see each key once.
Support walks_once(const AttentionProblem& problem) {
  if (!problem.attention.rounds_probabilities()) return Support::yes();
  return Support::no("rounded probabilities need the softmax denominator first");
}

// Runs of one query may bring their token into the caches by themselves: place_heads then has
// nothing to do.
void leave_out_placing(Lowered& lowered, const Dim& wanted) {
  for (Launch& launch : lowered.launches) {
    if (!launch.elidable_copy) launch.tasks = launch.tasks * wanted;
  }
  std::erase_if(lowered.launches, [](const Launch& launch) { return launch.tasks.is(0); });
}

// Up to most_flash_decode_queries() by flash-decoding, some more by flash, many by prefill; what
// does not decode or prefill leaves its queries to flash.
class AttentionPlan {
 public:
  AttentionPlan(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                const AttentionProblem& problem, bool decodes, bool prefills)
      : graph_(graph),
        node_(node),
        settings_(settings),
        problem_(problem),
        prefills_(prefills),
        fewest_(decodes ? most_flash_decode_queries(problem) : 0),
        few_(std::max(fewest_, few_flash_queries(graph, node, problem, settings))),
        adds_token_(decodes && can_add_token(graph, node, problem).ok) {
    if (one() > 0) decode_one_ = rank_flash_decode_configs(problem_, one(), *settings_.gpu);
    if (fewest_ > one()) decode_few_ = rank_flash_decode_configs(problem_, fewest_, *settings_.gpu);
    put_wanted_first({0, one()}, one(), decode_one_);
    put_wanted_first({one() + 1, fewest_}, fewest_, decode_few_);
  }

  const Dim& queries() const { return problem_.queries; }

  std::vector<RangePlan> ranges() const {
    std::vector<RangePlan> ranges;
    const auto add = [&](const RowRange& rows, std::vector<PlannedKernel> kernels) {
      if (!rows.is_empty()) ranges.push_back({rows, std::move(kernels)});
    };
    add({0, one()}, planned(decode_one_, one()));
    if (fewest_ > one()) add({one() + 1, fewest_}, planned(decode_few_, fewest_));
    const auto flash = [&](Skeleton skeleton) {
      return PlannedKernel{.config = {skeleton}, .flops = problem_.flops()};
    };
    if (few_ > fewest_) add({fewest_ + 1, few_}, {flash(Skeleton::kFlash)});
    add({few_ + 1}, {flash(prefills_ ? Skeleton::kFlashPrefill : Skeleton::kFlash)});
    return ranges;
  }

  Lowered lower() const {
    Lowered lowered;
    lowered.sizes = size_checks(graph_, problem_, /*mask_has_all_keys=*/false);
    const bool takes_codes = reads_codes(problem_).ok;
    const PlacedOperands placed =
        placed_operands(graph_, node_, problem_, HeadTiles::for_gpu(),
                        takes_codes ? 1 - has_few_queries(problem_, fewest_) : Dim(1), lowered);
    if (problem_.attention.has_codes()) lowered.configs.push_back(how_codes_are_read());
    if (adds_token_) leave_out_placing(lowered, 1 - has_few_queries(problem_, one()));
    add_decode(takes_codes ? placed.codes : placed.numbers, lowered);
    add_flash(placed.numbers, lowered);
    check_lengths(problem_, lowered);
    return lowered;
  }

 private:
  int64_t one() const { return std::min<int64_t>(1, fewest_); }  // the case that matters most

  void put_wanted_first(const RowRange& rows, int64_t queries,
                        std::vector<FlashDecodeConfig>& configs) const {
    kernels::put_wanted_first(settings_.tuning, rows, problem_.queries, configs,
                              [&](const FlashDecodeConfig& config) {
                                return config.planned(problem_for(queries), *settings_.gpu).config;
                              });
  }

  std::vector<PlannedKernel> planned(const std::vector<FlashDecodeConfig>& configs,
                                     int64_t queries) const {
    std::vector<PlannedKernel> kernels;
    for (const FlashDecodeConfig& config : configs) {
      kernels.push_back(config.planned(problem_for(queries), *settings_.gpu));
    }
    return kernels;
  }

  // Where tasks lie takes no divisions for one query.
  AttentionProblem problem_for(int64_t queries) const {
    AttentionProblem here = problem_;
    if (queries == 1) here.queries = 1;
    return here;
  }

  // Kernels of many queries read numbers: `fewest` queries or fewer take codes as they are.
  ConfigChoice how_codes_are_read() const {
    const Support direct =
        fewest_ == 0 ? Support::no("flash_decode does not run here") : reads_codes(problem_);
    ConfigChoice choice{
        direct ? fmt::format("queries > {}", fewest_) : "queries", {{Skeleton::kDequantizeKv}}, {}};
    if (!direct) {
      choice.others.push_back({{{Skeleton::kFlashDecode, {{Knob::kKvCodes, 1}}}}, direct.reason});
    }
    return choice;
  }

  void add_decode(const AttentionOperands& operands, Lowered& lowered) const {
    if (one() == 0) return;
    const Dim is_one = has_few_queries(problem_, one());
    add_decode(adds_token_ ? operands_of_past(problem_) : operands, one(), adds_token_, is_one,
               decode_one_, lowered);
    add_decode(operands, fewest_, /*adds_token=*/false, has_few_queries(problem_, fewest_) - is_one,
               decode_few_, lowered);
  }

  void add_decode(const AttentionOperands& operands, int64_t queries, bool adds_token,
                  const Dim& wanted, const std::vector<FlashDecodeConfig>& configs,
                  Lowered& lowered) const {
    if (wanted.is(0) || configs.empty()) return;
    const size_t rank = std::min(configs.size() - 1, static_cast<size_t>(settings_.tuning.rank));
    const std::vector<PlannedKernel> kernels = planned(configs, queries);
    ConfigChoice choice{RowRange{0, queries}.text("queries"), kernels[rank], {}};
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (i != rank) choice.others.push_back({kernels[i], ""});
    }
    lowered.configs.push_back(std::move(choice));
    check_mask(wanted * mask_span(problem_for(queries), queries, configs[rank]), lowered);
    lowered.launches.push_back(flash_decode_launch(graph_, node_, problem_for(queries), operands,
                                                   configs[rank], settings_.gpu->sm_count,
                                                   adds_token, wanted, lowered));
  }

  // Places in the mask are counted in 32 bits from the first one that a CTA's stage reads.
  static void check_mask(const Dim& span, Lowered& lowered) {
    const SizeCheck fits{span, ir::Relation::kAtMost, std::numeric_limits<int32_t>::max()};
    if (ir::decide(fits.left, fits.relation, fits.right) != true) lowered.sizes.push_back(fits);
  }

  static Dim mask_span(const AttentionProblem& problem, int64_t queries,
                       const FlashDecodeConfig& config) {
    return (problem.group() - 1) * problem.mask_head + (queries - 1) * problem.mask_query +
           config.keys() * problem.mask_key;
  }

  void add_flash(const AttentionOperands& operands, Lowered& lowered) const {
    const Dim some = has_few_queries(problem_, few_) - has_few_queries(problem_, fewest_);
    if (!some.is(0)) {
      lowered.launches.push_back(
          flash_launch(graph_, node_, problem_, operands, settings_, /*many=*/false, some));
    }
    const Dim many = 1 - has_few_queries(problem_, few_);
    if (many.is(0)) return;
    lowered.launches.push_back(
        prefills_
            ? prefill_launch(graph_, node_, problem_, operands, settings_, many)
            : flash_launch(graph_, node_, problem_, operands, settings_, /*many=*/true, many));
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const Settings& settings_;
  const AttentionProblem problem_;
  const bool prefills_;
  const int64_t fewest_, few_;  // queries that flash-decoding takes; those that flash takes
  const bool adds_token_;
  std::vector<FlashDecodeConfig> decode_one_, decode_few_;
};

Support can_decode(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                   const Settings& settings) {
  if (Support once = walks_once(problem); !once) return once;
  return supports_flash_decode(graph, node, problem, settings);
}

Support can_prefill(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                    const Settings& settings) {
  if (Support once = walks_once(problem); !once) return once;
  return supports_prefill(graph, node, problem, settings);
}

enum class Needs : uint8_t { kDecode, kPrefill, kNeither };

template <Needs needs>
Planned plan_attention(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedAttention described = describe_attention(graph, node);
  if (!described.support) return described.support;
  const AttentionProblem& problem = described.problem;
  if (problem.is_packed()) return Planned::no("packed QKV is not supported");
  if constexpr (needs == Needs::kDecode) {
    if (Support answer = can_decode(graph, node, problem, settings); !answer) return answer;
  }
  Support prefills = Support::no("not asked");
  if constexpr (needs != Needs::kNeither) {
    prefills = can_prefill(graph, node, problem, settings);
    if (needs == Needs::kPrefill && !prefills) return prefills;
  }
  const auto made = std::make_shared<const AttentionPlan>(graph, node, settings, problem,
                                                          needs == Needs::kDecode, prefills.ok);
  return Plan{made->ranges(), [made] { return made->lower(); }, made->queries()};
}

}  // namespace

std::span<const Candidate> gpu_attention_candidates() {
  static constexpr std::array<Candidate, 3> table = {{
      {"flash_decode", plan_attention<Needs::kDecode>},
      {"prefill", plan_attention<Needs::kPrefill>},
      {"flash", plan_attention<Needs::kNeither>},
  }};
  return table;
}

}  // namespace tenon::kernels
