#include "codegen/layout_inference/minimise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace tenon::codegen {
namespace {

struct Problem {
  std::vector<int> sizes;
  std::vector<PriceTable> tables;

  int64_t price(const std::vector<int>& ways) const {
    int64_t total = 0;
    for (const PriceTable& table : tables) {
      size_t at = 0;
      for (int choice : table.scope) {
        auto i = static_cast<size_t>(choice);
        at = at * static_cast<size_t>(sizes[i]) + static_cast<size_t>(ways[i]);
      }
      total += table.prices[at];
    }
    return total;
  }

  int64_t least() const {
    std::vector<int> ways(sizes.size());
    int64_t best = std::numeric_limits<int64_t>::max();
    while (true) {
      best = std::min(best, price(ways));
      size_t i = 0;
      while (i < ways.size() && ++ways[i] == sizes[i]) ways[i++] = 0;
      if (i == ways.size()) return best;
    }
  }
};

Problem random_problem(std::mt19937& random, int choices, int ways, double share) {
  Problem out;
  out.sizes.assign(static_cast<size_t>(choices), ways);
  auto add = [&](std::vector<int> scope, int entries) {
    PriceTable table{std::move(scope), {}};
    for (int i = 0; i < entries; ++i) table.prices.push_back(static_cast<int64_t>(random() % 100));
    out.tables.push_back(std::move(table));
  };
  for (int a = 0; a < choices; ++a) {
    add({a}, ways);
    for (int b = a + 1; b < choices; ++b) {
      if (std::uniform_real_distribution<>(0, 1)(random) < share) add({a, b}, ways * ways);
    }
  }
  return out;
}

TEST(MinimiseTest, FindsTheCheapestOfAllCombinations) {
  std::mt19937 random(1);
  for (double share : {0.0, 0.2, 0.5, 1.0}) {
    for (int trial = 0; trial < 10; ++trial) {
      Problem problem = random_problem(random, 7, 3, share);
      EXPECT_EQ(problem.price(minimise(problem.sizes, problem.tables)), problem.least());
    }
  }
}

// A table over all the others would be too large: some choices are tried each way.
TEST(MinimiseTest, TriesTheBusiestChoicesWhereTablesWouldBeTooLarge) {
  std::mt19937 random(2);
  Problem problem = random_problem(random, 8, 4, 1.0);
  ASSERT_GT(1 << 16, kMostPrices);
  EXPECT_EQ(problem.price(minimise(problem.sizes, problem.tables)), problem.least());
}

TEST(MinimiseTest, LongChainsAreShortWork) {
  std::mt19937 random(3);
  Problem problem;
  problem.sizes.assign(2000, 4);
  for (int i = 0; i + 1 < 2000; ++i) {
    PriceTable same{{i, i + 1}, std::vector<int64_t>(16, 1)};
    for (size_t way = 0; way < 4; ++way) same.prices[5 * way] = 0;
    problem.tables.push_back(same);
  }
  problem.tables.push_back({{1234}, {3, 2, 0, 1}});
  std::vector<int> ways = minimise(problem.sizes, problem.tables);
  EXPECT_EQ(ways, std::vector<int>(2000, 2));
}

TEST(MinimiseTest, EndsWhereItCannotTryEverything) {
  std::mt19937 random(4);
  Problem problem = random_problem(random, 24, 4, 1.0);
  std::vector<int> ways = minimise(problem.sizes, problem.tables);
  int64_t found = problem.price(ways);
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<int> other(24);
    for (int& way : other) way = static_cast<int>(random() % 4);
    EXPECT_LE(found, problem.price(other));
  }
}

}  // namespace
}  // namespace tenon::codegen
