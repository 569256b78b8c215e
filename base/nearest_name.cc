#include "base/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace tenon {
namespace {

// Levenshtein's: letters that are put in, left out or replaced.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_name(std::string_view given, std::span<const std::string_view> names) {
  const size_t most = std::max<size_t>(1, given.size() / 4);
  std::string_view nearest;
  // Of two that are as near, the one that goes on from what was given: sm_90a, not sm_80, for
  // sm_90.
  std::pair least{most + 1, false};
  for (const std::string_view name : names) {
    // At least so many letters differ: of what is much too long nothing is compared.
    const size_t least_distance =
        std::max(given.size(), name.size()) - std::min(given.size(), name.size());
    if (least_distance > least.first) continue;
    const std::pair distance{edit_distance(given, name), !name.starts_with(given)};
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view given, std::span<const std::string_view> names) {
  const std::string_view nearest = nearest_name(given, names);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest);
}

}  // namespace tenon
