#include "distributed/sharding/cut.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

namespace tenon::distributed {

int64_t length(const Pieces& pieces) {
  return std::transform_reduce(pieces.begin(), pieces.end(), int64_t{0}, std::plus<>(),
                               [](const Range& range) { return range.size(); });
}

std::string text(const Pieces& pieces) {
  std::string all;
  for (const Range& range : pieces) {
    all += fmt::format("{}{}..{}", all.empty() ? "" : " ", range.begin, range.end);
  }
  return all;
}

Shares times(const Shares& shares, int64_t width) {
  Shares wide = shares;
  for (Pieces& pieces : wide) {
    for (Range& range : pieces) range = {range.begin * width, range.end * width};
  }
  return wide;
}

std::optional<Shares> divided(const Shares& shares, int64_t width) {
  Shares narrow = shares;
  for (Pieces& pieces : narrow) {
    for (Range& range : pieces) {
      if (range.begin % width != 0 || range.end % width != 0) return std::nullopt;
      range = {range.begin / width, range.end / width};
    }
  }
  return narrow;
}

Shares shifted(const Shares& shares, int64_t by) {
  Shares moved = shares;
  for (Pieces& pieces : moved) {
    for (Range& range : pieces) range = {range.begin + by, range.end + by};
  }
  return moved;
}

Shares joined(const Shares& first, const Shares& second) {
  Shares both = first;
  for (size_t rank = 0; rank < both.size(); ++rank) {
    for (const Range& range : second[rank]) {
      Pieces& pieces = both[rank];
      if (!pieces.empty() && pieces.back().end == range.begin) {
        pieces.back().end = range.end;
      } else {
        pieces.push_back(range);
      }
    }
  }
  return both;
}

bool has_one_piece_each(const Shares& shares) {
  return std::ranges::all_of(shares, [](const Pieces& pieces) { return pieces.size() == 1; });
}

bool is_dealt_in_order(const Shares& shares, int64_t size) {
  int64_t next = 0;
  for (const Pieces& pieces : shares) {
    if (pieces.size() != 1 || pieces[0].begin != next) return false;
    next = pieces[0].end;
  }
  return next == size;
}

std::optional<Shares> deal(int64_t size, int64_t unit, int64_t ranks) {
  const int64_t units = (size + unit - 1) / unit;
  if (units < ranks) return std::nullopt;
  Shares shares;
  int64_t next = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t end = next + units / ranks + (rank < units % ranks ? 1 : 0);
    shares.push_back({{next * unit, std::min(end * unit, size)}});
    next = end;
  }
  return shares;
}

std::optional<Shares> deal_columns(int64_t size, int64_t block, int64_t ranks) {
  constexpr int64_t kMostOfEvenShare = 105;  // percent
  block = std::max<int64_t>(block, 1);
  for (const int64_t wanted : std::array<int64_t, 3>{64, 8, 1}) {
    const int64_t unit = std::lcm(block, wanted);
    auto shares = deal(size, unit, ranks);
    if (!shares) continue;
    const int64_t most = length(shares->front());
    if (unit == block || most * ranks * 100 <= size * kMostOfEvenShare) return shares;
  }
  return std::nullopt;
}

namespace {

// A KV head for each rank; ranks of the same one split its queries.
HeadShares deal_shared_heads(int64_t group, int64_t kv_heads, int64_t ranks) {
  HeadShares heads;
  const Shares sharing = *deal(ranks, 1, kv_heads);  // ranks of each KV head
  for (int64_t head = 0; head < kv_heads; ++head) {
    const Shares queries = *deal(group, 1, sharing[static_cast<size_t>(head)][0].size());
    for (const Pieces& own : shifted(queries, head * group)) {
      heads.q.push_back(own);
      heads.kv.push_back({{head, head + 1}});
    }
  }
  return heads;
}

}  // namespace

std::optional<HeadShares> deal_heads(int64_t q_heads, int64_t kv_heads, int64_t ranks) {
  if (kv_heads < 1 || q_heads % kv_heads != 0 || q_heads < ranks) return std::nullopt;
  const int64_t group = q_heads / kv_heads;
  if (kv_heads < ranks) return deal_shared_heads(group, kv_heads, ranks);
  Shares kv = *deal(kv_heads, 1, ranks);
  Shares q = times(kv, group);
  return HeadShares{std::move(q), std::move(kv)};
}

}  // namespace tenon::distributed
