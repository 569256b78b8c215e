#include "kernels/tunable_plans.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "kernels/offers.h"
#include "kernels/planning/views.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

// Rows between which no candidate changes its kernel.
std::vector<RowRange> cut_rows(const std::vector<Offer>& offers) {
  std::set<int64_t> firsts, behind;
  for (const Offer& offer : offers) {
    for (const RangePlan& range : offer.ranges()) {
      firsts.insert(range.rows.first);
      if (range.rows.last != RowRange::kNoLimit) firsts.insert(range.rows.last + 1);
      behind.insert(range.rows.last);
    }
  }
  std::vector<RowRange> ranges;
  for (auto first = firsts.begin(); first != firsts.end(); ++first) {
    const auto next = std::next(first);
    const int64_t last = next != firsts.end() ? *next - 1 : *behind.rbegin();
    if (*first <= last) ranges.push_back({*first, last});
  }
  return ranges;
}

TunablePlan make_plan(const ir::Graph& graph, const ir::Node& node, const Candidate& candidate,
                      WantedKernel kernel, const PlannedKernel& offered, const Settings& settings) {
  auto own = std::make_shared<Settings>(settings);
  own->tuning.kernels = {kernel};
  Planned planned = candidate.plan(graph, node, *own);
  if (!planned.plan) throw InternalError("a candidate changed its mind");
  return {std::move(kernel), offered.microseconds, offered.problem, std::move(*planned.plan),
          std::move(own)};
}

// Whose plan it is: it stands in the table of the node's op.
const Candidate& candidate_of(const TunablePlan& plan, const ir::Node& node) {
  for (const Candidate& candidate : candidates(node.op, *plan.settings)) {
    if (candidate.name == plan.kernel.candidate) return candidate;
  }
  throw InternalError("a plan's candidate is in no table");
}

class FusionLister {
 public:
  FusionLister(const ir::Graph& graph, const Settings& settings)
      : graph_(graph), settings_(settings) {
    settings_.records = nullptr;
    settings_.tuning.kernels.clear();
    settings_.tuning.lists_all = true;
  }

  std::vector<TunableRange> ranges(const ir::Node& node) const {
    const Offers offers = ask(graph_, node, settings_);
    const std::vector<PartChoice> parts = deal_rows(offers.plans);
    std::vector<TunableRange> ranges;
    if (parts.empty()) return ranges;
    for (const RowRange& rows : cut_rows(offers.plans)) {
      TunableRange range{rows, plans(node, rows, offers), 0};
      if (range.plans.size() < 2) continue;
      range.untuned = place_of_untuned(range, parts);
      ranges.push_back(std::move(range));
    }
    return ranges;
  }

 private:
  // A range that reaches further than `rows` has one kernel for all of them: its first.
  std::vector<TunablePlan> plans(const ir::Node& node, const RowRange& rows,
                                 const Offers& offers) const {
    std::vector<TunablePlan> plans;
    for (const Offer& offer : offers.plans) {
      for (const RangePlan& range : offer.ranges()) {
        if (!range.rows.covers(rows)) continue;
        const size_t count = range.rows == rows ? range.kernels.size() : 1;
        for (size_t i = 0; i < count; ++i) {
          const PlannedKernel& kernel = range.kernels[i];
          plans.push_back(make_plan(graph_, node, *offer.candidate,
                                    {std::string(offer.candidate->name), rows, kernel.config},
                                    kernel, settings_));
        }
      }
    }
    return plans;
  }

  static size_t place_of_untuned(const TunableRange& range, const std::vector<PartChoice>& parts) {
    for (const PartChoice& part : parts) {
      if (!part.rows.covers(range.rows)) continue;
      for (const RangePlan& known : part.plan.ranges) {
        if (!known.rows.covers(range.rows)) continue;
        const auto found = std::ranges::find_if(range.plans, [&](const TunablePlan& each) {
          return each.kernel.candidate == part.candidate &&
                 each.kernel.config == known.kernels.front().config;
        });
        if (found != range.plans.end()) {
          return static_cast<size_t>(found - range.plans.begin());
        }
      }
    }
    throw InternalError("what runs without records is not among the plans");
  }

  const ir::Graph& graph_;
  Settings settings_;
};

}  // namespace

std::vector<TunableFusion> tunable_fusions(const ir::Graph& fused, const Settings& settings) {
  const FusionLister lister(fused, settings);
  std::vector<TunableFusion> fusions;
  std::set<std::string> in_one_way;
  for (const ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    if (is_view(node) || is_shape_value(node)) continue;
    FusionKey key = fusion_key(fused, node, settings.precision);
    if (in_one_way.contains(key.fingerprint)) continue;
    const auto known = std::ranges::find_if(fusions, [&](const TunableFusion& fusion) {
      return fusion.key.fingerprint == key.fingerprint;
    });
    if (known != fusions.end()) {
      known->nodes.push_back(id);
      continue;
    }
    std::vector<TunableRange> ranges = lister.ranges(node);
    if (ranges.empty()) {
      in_one_way.insert(key.fingerprint);
    } else {
      fusions.push_back({std::move(key), {id}, std::move(ranges)});
    }
  }
  return fusions;
}

std::vector<PlannedKernel> unlisted_kernels(const ir::Graph& fused, const TunableFusion& fusion,
                                            const TunableRange& range, const TunablePlan& like) {
  const ir::Node& node = fused.node(fusion.nodes.front());
  const Candidate& candidate = candidate_of(like, node);
  Settings settings = *like.settings;
  settings.tuning.kernels.clear();
  settings.tuning.told = std::numeric_limits<int>::max();
  Planned planned = candidate.plan(fused, node, settings);
  if (!planned.plan) throw InternalError("a candidate changed its mind");
  std::vector<PlannedKernel> kernels;
  for (RangePlan& offered : Offer{&candidate, std::move(*planned.plan)}.ranges()) {
    if (offered.rows == range.rows) kernels = std::move(offered.kernels);
  }
  std::erase_if(kernels, [&](const PlannedKernel& kernel) {
    return std::ranges::any_of(range.plans, [&](const TunablePlan& plan) {
      return plan.kernel.candidate == candidate.name && plan.kernel.config == kernel.config;
    });
  });
  return kernels;
}

TunablePlan plan_of(const ir::Graph& fused, const TunableFusion& fusion, const TunablePlan& like,
                    const PlannedKernel& kernel) {
  const ir::Node& node = fused.node(fusion.nodes.front());
  return make_plan(fused, node, candidate_of(like, node),
                   {like.kernel.candidate, like.kernel.rows, kernel.config}, kernel,
                   *like.settings);
}

}  // namespace tenon::kernels
