// The cheapest of all combinations of choices, where prices depend on few choices at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace tenon::codegen {

// What each combination of the choices in `scope` costs; the last one counts fastest.
struct PriceTable {
  std::vector<int> scope;
  std::vector<int64_t> prices;
};

// Choices are eliminated one by one, those that few others depend on first: the table over what a
// choice depends on holds its best answer. This is exact. Where that table would have more than
// kMostPrices entries, the choice that most others depend on is tried each way; after kMostTrials
// of these only the most promising way is looked at.
inline constexpr int64_t kMostPrices = 1 << 12;
inline constexpr int kMostTrials = 64;

// sizes[i]: how many ways choice i has. The answer: which way each goes.
std::vector<int> minimise(const std::vector<int>& sizes, std::vector<PriceTable> tables);

}  // namespace tenon::codegen
