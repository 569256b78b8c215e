#include "graph_partitioner/ir/collectives.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tenon::ir {
namespace {

constexpr std::array kCollectives = {kAllReduce, kAllGather, kReduceScatter,
                                     kAllToAll,  kBroadcast, kPermute};
constexpr std::array<std::string_view, 5> kReductions = {"sum", "prod", "min", "max", "average"};

bool reduces(std::string_view op) { return op == kAllReduce || op == kReduceScatter; }
bool knows_ranks(std::string_view op) { return op != kAllReduce && op != kBroadcast; }

Support check_groups(const Collective& collective) {
  std::vector<int64_t> seen;
  int64_t members = 0;
  const auto fits = [&] { return members == collective.ranks; };
  for (const int64_t rank : collective.groups) {
    if (rank == -1) {
      if (!fits()) break;
      members = 0;
      continue;
    }
    if (rank < 0) return Support::no(fmt::format("there is no rank {}", rank));
    seen.push_back(rank);
    ++members;
  }
  if (!collective.groups.empty() && !fits()) {
    return Support::no(
        fmt::format("a group has {} ranks, and {} were said", members, collective.ranks));
  }
  std::ranges::sort(seen);
  if (std::ranges::adjacent_find(seen) != seen.end()) {
    return Support::no("a rank is in two groups");
  }
  return Support::yes();
}

Support check_pairs(const Collective& collective) {
  if (collective.pairs.size() % 2 != 0) return Support::no("a source has no target");
  for (const size_t side : {0, 1}) {
    std::vector<int64_t> seen;
    for (size_t i = side; i < collective.pairs.size(); i += 2) seen.push_back(collective.pairs[i]);
    for (const int64_t rank : seen) {
      if (rank < 0 || rank >= collective.ranks) {
        return Support::no(fmt::format("there is no rank {}", rank));
      }
    }
    std::ranges::sort(seen);
    if (std::ranges::adjacent_find(seen) != seen.end()) {
      return Support::no(side == 0 ? "a rank sends twice" : "a rank receives twice");
    }
  }
  return Support::yes();
}

}  // namespace

bool is_collective(const Node& node) {
  return std::ranges::find(kCollectives, node.op) != kCollectives.end();
}

bool is_imported_collective(const Node& node) {
  return node.is("com.microsoft::AllGather") || node.is("com.microsoft::AllReduce") ||
         node.is("com.microsoft::AllToAll");
}

Collective Collective::from(const Node& node) {
  Collective collective;
  collective.op = node.op;
  collective.reduction = node.text("reduction", "sum");
  collective.parts = node.integers("parts");
  collective.part = node.integer("part", 0);
  collective.groups = node.integers("groups");
  collective.ranks = node.integer("ranks", 0);
  collective.root = node.integer("root", 0);
  collective.pairs = node.integers("pairs");
  collective.note = node.text("note", "");
  return collective;
}

void Collective::write_to(Node& node) const {
  node.op = op;
  node.since_version = 0;
  node.attributes.clear();
  if (ranks > 0) node.attributes["ranks"] = ranks;
  if (reduces(op)) node.attributes["reduction"] = reduction;
  if (!parts.empty()) node.attributes["parts"] = parts;
  if (!parts.empty()) node.attributes["part"] = part;
  if (!groups.empty()) node.attributes["groups"] = groups;
  if (op == kBroadcast) node.attributes["root"] = root;
  if (op == kPermute) node.attributes["pairs"] = pairs;
  if (!note.empty()) node.attributes["note"] = note;
}

Support check(const Collective& collective) {
  if (collective.ranks < (knows_ranks(collective.op) ? 1 : 0)) {
    return Support::no(fmt::format("a group of {} ranks", collective.ranks));
  }
  if (std::ranges::find(kReductions, collective.reduction) == kReductions.end()) {
    return Support::no(fmt::format("reduction '{}'", collective.reduction));
  }
  if (!collective.parts.empty() && std::ssize(collective.parts) != collective.ranks) {
    return Support::no(
        fmt::format("{} parts for {} ranks", collective.parts.size(), collective.ranks));
  }
  if (std::ranges::any_of(collective.parts, [](int64_t part) { return part < 0; })) {
    return Support::no("a part is below 0");
  }
  if (!collective.parts.empty() && (collective.part < 0 || collective.part >= collective.ranks)) {
    return Support::no(fmt::format("part {} of {} ranks", collective.part, collective.ranks));
  }
  if (collective.root < 0 || (collective.ranks > 0 && collective.root >= collective.ranks)) {
    return Support::no(fmt::format("root {} of {} ranks", collective.root, collective.ranks));
  }
  if (Support answer = check_pairs(collective); !answer) return answer;
  return check_groups(collective);
}

}  // namespace tenon::ir
