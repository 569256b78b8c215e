#include "distributed/rendezvous/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/byte_form.h"
#include "base/error.h"
#include "distributed/rendezvous/rank_list.h"
#include "distributed/rendezvous/store.h"

namespace tenon::distributed {
namespace {

// Of a value in a message; and what is shown before the place where long ones part.
constexpr size_t kShown = 120, kShownBefore = 20;
constexpr size_t kShownFields = 4;

std::optional<std::string> value_of(const Fingerprint& fingerprint, const std::string& name) {
  for (const auto& [field, value] : fingerprint.fields) {
    if (field == name) return value;
  }
  return std::nullopt;
}

// All names, in the order in which they first come.
std::vector<std::string> names_of(const std::map<int, Fingerprint>& of_ranks) {
  std::vector<std::string> names;
  for (const auto& [rank, fingerprint] : of_ranks) {
    for (const auto& [name, value] : fingerprint.fields) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

struct Group {
  std::optional<std::string> value;
  std::vector<int> ranks;
};

std::vector<Group> groups_by_value(const std::map<int, Fingerprint>& of_ranks,
                                   const std::string& name) {
  std::vector<Group> groups;
  for (const auto& [rank, fingerprint] : of_ranks) {
    const std::optional<std::string> value = value_of(fingerprint, name);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& other) { return other.value == value; });
    if (group == groups.end()) group = groups.insert(group, {value, {}});
    group->ranks.push_back(rank);
  }
  return groups;
}

size_t common_start(const std::vector<Group>& groups) {
  const std::string first = groups.front().value.value_or("");
  size_t common = first.size();
  for (const Group& group : groups) {
    const std::string other = group.value.value_or("");
    const size_t shorter = std::min(common, other.size());
    const auto parted = std::mismatch(
        first.begin(), first.begin() + static_cast<ptrdiff_t>(shorter), other.begin());
    common = static_cast<size_t>(parted.first - first.begin());
  }
  return common;
}

std::string shown(const std::optional<std::string>& value, size_t common) {
  if (!value) return "nothing";
  if (value->empty()) return "''";
  if (value->size() <= kShown) return *value;
  const size_t from = common > kShown / 2 ? common - kShownBefore : 0;
  return fmt::format("{}{}{}", from > 0 ? "…" : "", value->substr(from, kShown),
                     from + kShown < value->size() ? "…" : "");
}

}  // namespace

Fingerprint fingerprint(const StartFacts& facts) {
  return {{{"model", facts.model},
           {"options", facts.options},
           {"build of Tenon", facts.build},
           {"number of ranks", std::to_string(facts.ranks)},
           {"collective engine", facts.engine}}};
}

std::string difference(const std::vector<Fingerprint>& of_ranks) {
  std::map<int, Fingerprint> by_rank;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    by_rank[static_cast<int>(rank)] = of_ranks[rank];
  }
  return difference_of_some(by_rank);
}

std::string difference_of_some(const std::map<int, Fingerprint>& of_ranks) {
  std::string text;
  size_t differing = 0;
  for (const std::string& name : names_of(of_ranks)) {
    const std::vector<Group> groups = groups_by_value(of_ranks, name);
    if (groups.size() == 1 || ++differing > kShownFields) continue;
    text += fmt::format("{} {}: ", text.empty() ? "the ranks differ in the" : "; in the", name);
    for (size_t i = 0; i < groups.size(); ++i) {
      text += fmt::format("{}{} on {}", i == 0 ? "" : ", ",
                          shown(groups[i].value, common_start(groups)), rank_list(groups[i].ranks));
    }
  }
  if (differing > kShownFields) text += fmt::format("; and in {} more", differing - kShownFields);
  return text;
}

void require_equal(Store& store, std::string_view occasion, const Fingerprint& mine,
                   std::chrono::milliseconds deadline) {
  const std::vector<std::string> encoded =
      store.all_gather(fmt::format("fingerprints of {}", occasion), encode(mine), deadline);
  std::vector<Fingerprint> of_ranks;
  for (size_t rank = 0; rank < encoded.size(); ++rank) {
    try {
      of_ranks.push_back(decode_fingerprint(encoded[rank]));
    } catch (const UserError&) {
      throw UserError(
          fmt::format("at {}: what rank {} says of itself cannot be read; it runs "
                      "another build of Tenon",
                      occasion, rank));
    }
  }
  const std::string text = difference(of_ranks);
  if (!text.empty()) throw UserError(fmt::format("at {}, {}", occasion, text));
}

std::string encode(const Fingerprint& fingerprint) {
  ByteWriter writer;
  for (const auto& [name, value] : fingerprint.fields) {
    writer.text(name);
    writer.text(value);
  }
  return writer.take();
}

Fingerprint decode_fingerprint(std::string_view bytes) {
  ByteReader reader(bytes);
  Fingerprint fingerprint;
  while (reader.left() > 0) {
    std::string name(reader.text());
    fingerprint.fields.emplace_back(std::move(name), reader.text());
  }
  return fingerprint;
}

}  // namespace tenon::distributed
