#include "distributed/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tenon::distributed {

std::string ranks_text(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  return fmt::format("ranks {} and {}", fmt::join(ranks.first(ranks.size() - 1), ", "),
                     ranks.back());
}

std::string time_text(std::chrono::milliseconds time) {
  const auto count = time.count();
  return count % 1000 == 0 ? fmt::format("{} s", count / 1000) : fmt::format("{} ms", count);
}

}  // namespace tenon::distributed
