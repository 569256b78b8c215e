#include "distributed/rendezvous/announcements.h"

#include <fmt/format.h>

#include <algorithm>

#include "distributed/rendezvous/fingerprint.h"

namespace tenon::distributed {
namespace {

// Ranks without a collective between them may run ahead of each other; no more is kept of that.
constexpr size_t kMostOpen = 1024;

}  // namespace

std::string Announcements::take(int rank, const std::string& occasion, const std::string& word) {
  const auto [round, fresh] = open_.try_emplace(occasion);
  std::map<int, std::string>& words = round->second;
  if (fresh) order_.push_back(occasion);
  words[rank] = word;
  if (words.begin()->second != word || words.rbegin()->second != word) {
    std::map<int, Fingerprint> of_ranks;
    for (const auto& [who, said] : words) of_ranks[who] = decode_fingerprint(said);
    return fmt::format("at {}, {}", occasion, difference_of_some(of_ranks));
  }
  const auto forget = [&](const std::string& which) {
    open_.erase(which);
    std::erase(order_, which);
  };
  if (words.size() == static_cast<size_t>(ranks_)) forget(std::string(occasion));
  if (order_.size() > kMostOpen) forget(std::string(order_.front()));
  return "";
}

}  // namespace tenon::distributed
