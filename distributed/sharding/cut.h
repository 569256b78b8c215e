// How one dim of a value is dealt out to ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenon::distributed {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// What one rank holds of a dim, behind each other: one range, or several where the dim packs q, k
// and v side by side and each of them is cut.
using Pieces = std::vector<Range>;
// By rank. Two ranks may hold the same part: a KV head that they share.
using Shares = std::vector<Pieces>;

int64_t length(const Pieces& pieces);
std::string text(const Pieces& pieces);  // "0..64", "0..16 64..72"

struct Cut {
  size_t axis = 0;
  Shares shares;
  bool operator==(const Cut&) const = default;

  Cut along(size_t other) const { return {other, shares}; }
};

Shares times(const Shares& shares, int64_t width);  // of a dim in which each step is `width` wide
std::optional<Shares> divided(const Shares& shares, int64_t width);  // nullopt: not in whole steps
Shares shifted(const Shares& shares, int64_t by);
Shares joined(const Shares& first, const Shares& second);  // second's pieces behind first's
bool has_one_piece_each(const Shares& shares);
// Every index below `size` is one rank's, and ranks follow each other: what AllGather puts
// together.
bool is_dealt_in_order(const Shares& shares, int64_t size);

// Whole units, one more for the first ranks where they do not come out even; the last unit may be
// cut short. nullopt: there are fewer units than ranks.
std::optional<Shares> deal(int64_t size, int64_t unit, int64_t ranks);

// The same in units that kernels like, multiples of 64, where that costs little balance; in
// multiples of `block` in any case.
std::optional<Shares> deal_columns(int64_t size, int64_t block, int64_t ranks);

// Heads of an attention: whole groups of the queries of a KV head, or, where ranks outnumber KV
// heads, a KV head for several ranks that split its queries.
struct HeadShares {
  Shares q, kv;
};
std::optional<HeadShares> deal_heads(int64_t q_heads, int64_t kv_heads, int64_t ranks);

}  // namespace tenon::distributed
