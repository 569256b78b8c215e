#include "kernels/tuned_choice.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "kernels/autotune/fusion_key.h"
#include "kernels/autotune/tuning_file.h"
#include "kernels/autotune/tuning_records.h"
#include "kernels/offers.h"

namespace tenon::kernels {
namespace {

// Why the recorded kernel is not what its candidate would run.
std::string why_not_offered(const Offers& offers, const TuningRecord& record) {
  const std::string& wanted = record.kernel.candidate;
  const auto verdict = std::ranges::find(offers.verdicts, wanted, &Verdict::candidate);
  if (verdict == offers.verdicts.end()) return fmt::format("there is no candidate '{}'", wanted);
  if (!verdict->support) return fmt::format("{}: {}", wanted, verdict->support.reason);
  const auto offer = std::ranges::find(offers.plans, wanted,
                                       [](const Offer& each) { return each.candidate->name; });
  bool is_met = false;
  for (const RangePlan& range : offer->ranges()) {
    if (range.rows.common_with(record.rows).is_empty()) continue;
    is_met = true;
    if (range.kernels.front().config == record.kernel.config) continue;
    return fmt::format("{} does not offer '{}' for {}", wanted, record.kernel.config.text(),
                       range.rows.text("rows"));
  }
  return is_met ? "" : fmt::format("{} takes none of these rows", wanted);
}

// Neighbours of one candidate are one plan.
std::vector<PartChoice> join_neighbours(std::vector<PartChoice> parts) {
  std::vector<PartChoice> joined;
  for (PartChoice& part : parts) {
    if (!joined.empty() && joined.back().candidate == part.candidate) {
      joined.back().rows.last = part.rows.last;
    } else {
      joined.push_back(std::move(part));
    }
  }
  return joined;
}

// Recorded rows first. A Plan refers to the settings that it was made with: it keeps them.
std::vector<PartChoice> deal(const Offers& offers, const std::vector<TuningRecord>& records,
                             const std::shared_ptr<const Settings>& settings) {
  std::vector<Offer> ordered;
  for (const TuningRecord& record : records) {
    const auto offer = std::ranges::find(offers.plans, record.kernel.candidate,
                                         [](const Offer& each) { return each.candidate->name; });
    ordered.push_back(*offer);
    ordered.back().plan.takes = offer->plan.takes.common_with(record.rows);
  }
  ordered.insert(ordered.end(), offers.plans.begin(), offers.plans.end());
  std::vector<PartChoice> parts = join_neighbours(deal_rows(ordered));
  for (PartChoice& part : parts) {
    part.plan.lower = [settings, lower = std::move(part.plan.lower)] { return lower(); };
  }
  return parts;
}

// A range that reaches further than `rows` has one kernel for all of them: its first.
std::vector<TuningNote::Way> ways_of(const Offers& offers, const RowRange& rows) {
  std::vector<TuningNote::Way> ways;
  for (const Offer& offer : offers.plans) {
    for (const RangePlan& range : offer.ranges()) {
      if (!range.rows.covers(rows)) continue;
      const size_t count = range.rows == rows ? range.kernels.size() : 1;
      for (size_t i = 0; i < count; ++i) {
        ways.push_back({std::string(offer.candidate->name), range.kernels[i]});
      }
    }
  }
  return ways;
}

// Rows that no record speaks of, where there was something to choose.
void add_misses(const Offers& offers, const std::vector<TuningRecord>& records, Choice& choice) {
  for (const PartChoice& part : choice.parts) {
    for (const RangePlan& range : Offer{nullptr, part.plan}.ranges()) {
      const RowRange rows = range.rows.common_with(part.rows);
      const bool is_recorded = std::ranges::any_of(
          records, [&](const TuningRecord& record) { return record.rows.covers(rows); });
      if (rows.is_empty() || is_recorded) continue;
      std::vector<TuningNote::Way> ways = ways_of(offers, rows);
      if (ways.size() < 2) continue;
      choice.untuned.push_back(rows);
      const bool is_told = std::ranges::any_of(choice.tuning, [&](const TuningNote& note) {
        return !note.used && !note.rows.common_with(rows).is_empty();
      });
      if (!is_told) choice.tuning.push_back({rows, false, "no record", std::move(ways)});
    }
  }
}

// Records that their candidates do not offer are dropped and told of; then all are asked again.
Offers ask_with_records(const ir::Graph& graph, const ir::Node& node, Settings& settings,
                        std::vector<TuningRecord>& records, std::vector<TuningNote>& notes) {
  while (true) {
    settings.tuning.kernels.clear();
    for (const TuningRecord& record : records) {
      settings.tuning.kernels.push_back(
          {record.kernel.candidate, record.rows, record.kernel.config});
    }
    Offers offers = ask(graph, node, settings);
    const size_t dropped = std::erase_if(records, [&](const TuningRecord& record) {
      std::string reason = why_not_offered(offers, record);
      const bool is_refused = !reason.empty();
      if (is_refused) notes.push_back({record.rows, false, std::move(reason)});
      return is_refused;
    });
    if (dropped == 0) return offers;
  }
}

}  // namespace

Choice choose_by_records(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const FusionKey key = fusion_key(graph, node, settings.precision);
  auto [records, ignored] = settings.records->find(key.fingerprint);
  Choice choice;
  for (TuningRecords::Ignored& each : ignored) {
    choice.tuning.push_back({each.rows, false, std::move(each.reason)});
  }
  const auto own = std::make_shared<Settings>(settings);
  Offers offers = ask_with_records(graph, node, *own, records, choice.tuning);
  choice.fusion = key.text;
  choice.fingerprint = key.fingerprint;
  choice.parts = deal(offers, records, own);
  add_misses(offers, records, choice);
  for (const TuningRecord& record : records) {
    const PlannedKernel kernel{record.kernel.config, record.microseconds};
    choice.tuning.push_back(
        {record.rows, true, record.text(), {{record.kernel.candidate, kernel}}});
  }
  std::ranges::stable_sort(choice.tuning, {}, [](const TuningNote& note) {
    return std::pair(note.rows.first, note.rows.last);
  });
  if (!records.empty()) {
    TuningFile used;
    used.merge(records);
    choice.used_records = used.print();
  }
  choice.verdicts = std::move(offers.verdicts);
  return choice;
}

}  // namespace tenon::kernels
