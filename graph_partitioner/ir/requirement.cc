#include "graph_partitioner/ir/requirement.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tenon::ir {
namespace {

struct Wording {
  std::string_view name, demand;
};

constexpr std::array<Wording, 5> kWordings{{
    {"equal", "must be equal"},
    {"broadcasts", "do not broadcast: they differ and neither is 1"},
    {"stretches", "do not broadcast: they differ and the first is not 1"},
    {"at_most", "do not fit: the first must not be larger"},
    {"divides", "do not fit: the first must divide the second"},
}};

std::string shown(int64_t value, const Dim& dim) {
  return dim.is_constant() ? fmt::format("{}", value) : fmt::format("{} ({})", value, dim.text());
}

}  // namespace

std::string_view relation_name(Relation relation) {
  return kWordings[static_cast<size_t>(relation)].name;
}

std::optional<Relation> parse_relation(std::string_view name) {
  const auto* const found = std::ranges::find(kWordings, name, &Wording::name);
  if (found == kWordings.end()) return std::nullopt;
  return static_cast<Relation>(found - kWordings.begin());
}

bool holds(int64_t left, Relation relation, int64_t right) {
  switch (relation) {
    case Relation::kEqual:
      return left == right;
    case Relation::kBroadcasts:
      return left == right || left == 1 || right == 1;
    case Relation::kStretches:
      return left == right || left == 1;
    case Relation::kAtMost:
      return left <= right;
    case Relation::kDivides:
      return left == -1 || (left != 0 && right % left == 0);
  }
  return false;
}

std::optional<bool> decide(const Dim& left, Relation relation, const Dim& right) {
  if (left.is_constant() && right.is_constant()) {
    return holds(left.value(), relation, right.value());
  }
  const bool is_given = [&] {
    switch (relation) {
      case Relation::kEqual:
        return left == right;
      case Relation::kBroadcasts:
        return left == right || left.is(1) || right.is(1);
      case Relation::kStretches:
        return left == right || left.is(1);
      case Relation::kAtMost:
        return min(left, right) == left;
      case Relation::kDivides:
        return !left.is(0) && mod(right, left).is(0);
    }
    return false;
  }();
  if (is_given) return true;
  if (relation == Relation::kDivides && left.is(0)) return false;
  // Apart by a number, whatever the symbols are.
  const bool compares = relation == Relation::kEqual || relation == Relation::kAtMost;
  if (compares && (left - right).is_constant()) return false;
  return std::nullopt;
}

std::string explain(const Requirement& broken, int64_t left, int64_t right) {
  return fmt::format("sizes {} and {} {}", shown(left, broken.left), shown(right, broken.right),
                     kWordings[static_cast<size_t>(broken.relation)].demand);
}

}  // namespace tenon::ir
