#include "distributed/call_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tenon::distributed {

void CallChecks::refuse(std::string_view why) const {
  throw UserError(fmt::format("{} on rank {} of {}: {}", op_, rank_, size_, why));
}

void CallChecks::count(int64_t count, DType dtype) const {
  if (count < 0) refuse(fmt::format("the count is {}, it may not be negative", count));
  if (const Support answer = can_move(dtype, count); !answer) refuse(answer.reason);
  storage_bytes(dtype, checked_mul(count, size_));
}

int64_t CallChecks::counts(std::span<const int64_t> counts, DType dtype) const {
  if (counts.size() != static_cast<size_t>(size_)) {
    refuse(fmt::format("{} counts were given, one for each of {} ranks is needed", counts.size(),
                       size_));
  }
  int64_t sum = 0;
  for (size_t of = 0; of < counts.size(); ++of) {
    if (counts[of] < 0) {
      refuse(fmt::format("the count of rank {} is {}, it may not be negative", of, counts[of]));
    }
    if (const Support answer = can_move(dtype, counts[of]); !answer) {
      refuse(fmt::format("the count of rank {}: {}", of, answer.reason));
    }
    sum = checked_add(sum, counts[of]);
  }
  storage_bytes(dtype, sum);
  return sum;
}

void CallChecks::in_range(std::string_view what, int rank) const {
  if (rank < 0 || rank >= size_) {
    refuse(fmt::format("the {} is rank {}, but ranks are 0 to {}", what, rank, size_ - 1));
  }
}

void CallChecks::another(std::string_view what, int rank) const {
  in_range(what, rank);
  if (rank == rank_) refuse(fmt::format("the {} is the rank itself", what));
}

void CallChecks::pairs(std::span<const std::pair<int, int>> pairs) const {
  std::vector<char> is_source(size_), is_target(size_);
  for (const auto& [source, target] : pairs) {
    in_range("source of a pair", source);
    in_range("target of a pair", target);
    if (is_source[source]++) refuse(fmt::format("rank {} is the source of two pairs", source));
    if (is_target[target]++) refuse(fmt::format("rank {} is the target of two pairs", target));
  }
}

void CallChecks::groups(std::span<const std::vector<int>> groups) const {
  constexpr int kNone = -1;
  std::vector<int> group_of(size_, kNone);
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].empty()) refuse(fmt::format("group {} is empty", group));
    for (const int rank : groups[group]) {
      in_range(fmt::format("member of group {}", group), rank);
      if (group_of[rank] == static_cast<int>(group)) {
        refuse(fmt::format("rank {} is in group {} twice", rank, group));
      }
      if (group_of[rank] != kNone) {
        refuse(fmt::format("rank {} is in groups {} and {}", rank, group_of[rank], group));
      }
      group_of[rank] = static_cast<int>(group);
    }
  }
}

void CallChecks::supported(const Support& answer) const {
  if (!answer) refuse(answer.reason);
}

void CallChecks::memory(std::string_view what, const void* memory, int64_t elements) const {
  if (memory == nullptr && elements > 0) {
    refuse(fmt::format("'{}' is null, {} elements are needed there", what, elements));
  }
}

void CallChecks::apart(const Buffers& buffers, DType dtype, std::optional<int64_t> same) const {
  const auto in = reinterpret_cast<uintptr_t>(buffers.in);
  const auto out = reinterpret_cast<uintptr_t>(buffers.out);
  const size_t in_bytes = storage_bytes(dtype, buffers.in_elements);
  const size_t out_bytes = storage_bytes(dtype, buffers.out_elements);
  if (in_bytes == 0 || out_bytes == 0 || in + in_bytes <= out || out + out_bytes <= in) return;
  if (same) {
    const size_t offset = storage_bytes(dtype, *same);
    if (in_bytes <= out_bytes ? in == out + offset : out == in + offset) return;
  }
  refuse(same ? "'in' and 'out' overlap, but not where the one is the rank's part of the other"
              : "'in' and 'out' overlap");
}

std::string counts_text(std::span<const int64_t> counts) {
  if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end()) return "";
  return fmt::format("counts {}", fmt::join(counts, ", "));
}

std::string pairs_text(std::span<const std::pair<int, int>> pairs) {
  std::vector<std::string> texts;
  for (const auto& [source, target] : pairs)
    texts.push_back(fmt::format("{} to {}", source, target));
  return texts.empty() ? "no pairs" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string groups_text(std::span<const std::vector<int>> groups) {
  std::vector<std::string> texts;
  for (const auto& group : groups) texts.push_back(fmt::format("{}", fmt::join(group, " ")));
  return texts.empty() ? "no groups" : fmt::format("groups {}", fmt::join(texts, " | "));
}

}  // namespace tenon::distributed
