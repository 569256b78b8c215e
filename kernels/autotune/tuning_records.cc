#include "kernels/autotune/tuning_records.h"

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "base/hash.h"

namespace tenon::kernels {

std::string why_of_another_machine(const TuningMachine& record, const TuningMachine& here) {
  const auto differ = [](const auto& a, const auto& b) {
    const std::remove_cvref_t<decltype(a)> unknown{};
    return a != unknown && b != unknown && a != b;
  };
  if (differ(record.arch, here.arch) || differ(record.sm_count, here.sm_count) ||
      differ(record.clock_mhz, here.clock_mhz)) {
    return fmt::format("measured on {}, and this is {}", record.text(), here.text());
  }
  if (differ(record.tenon, here.tenon)) {
    return fmt::format("measured with Tenon {}, and this is {}", record.tenon, here.tenon);
  }
  if (differ(record.driver, here.driver)) {
    return fmt::format("measured with driver {}, and this is {}", record.driver, here.driver);
  }
  if (!here.arch.empty() && !record.library.empty() && record.library != here.library) {
    return fmt::format("measured with {}, which is not here", record.library);
  }
  return "";
}

TuningRecords::TuningRecords(const std::vector<TuningRecord>& records, TuningMachine here,
                             std::vector<std::string> problems)
    : here_(std::move(here)), problems_(std::move(problems)) {
  for (const TuningRecord& record : records) {
    TuningRecord& added = by_fusion_[record.fingerprint].emplace_back(record);
    if (added.rows.first == 1) added.rows.first = 0;  // no rows are no work
  }
  for (auto& [fingerprint, known] : by_fusion_) {
    std::ranges::stable_sort(known, std::ranges::greater{}, &TuningRecord::date);
  }
}

TuningRecords::Match TuningRecords::find(std::string_view fingerprint) const {
  Match match;
  const auto known = by_fusion_.find(fingerprint);
  if (known == by_fusion_.end()) return match;
  for (const TuningRecord& record : known->second) {
    std::string reason = why_of_another_machine(record.machine, here_);
    const bool is_older = std::ranges::any_of(match.records, [&](const TuningRecord& newer) {
      return !newer.rows.common_with(record.rows).is_empty();
    });
    if (reason.empty() && is_older) reason = "a newer record has some of its rows";
    if (reason.empty()) {
      match.records.push_back(record);
    } else {
      match.ignored.push_back({record.rows, std::move(reason)});
    }
  }
  return match;
}

std::string TuningRecords::digest() const {
  std::string all;
  for (const auto& [fingerprint, known] : by_fusion_) {
    for (const TuningRecord& record : known) all += record.to_message().print();
  }
  return hex(sha256(all));
}

size_t TuningRecords::usable() const {
  size_t count = 0;
  for (const auto& [fingerprint, known] : by_fusion_) {
    count += static_cast<size_t>(std::ranges::count_if(known, [&](const TuningRecord& record) {
      return why_of_another_machine(record.machine, here_).empty();
    }));
  }
  return count;
}

}  // namespace tenon::kernels
