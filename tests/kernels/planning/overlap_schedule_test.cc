#include "kernels/planning/overlap_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "base/error.h"

namespace tenon::kernels {
namespace {

ScheduledNode work(std::vector<size_t> after, double microseconds = 10) {
  return {std::move(after), false, microseconds};
}
ScheduledNode collective(std::vector<size_t> after, double microseconds = 10) {
  return {std::move(after), true, microseconds};
}

using Order = std::vector<size_t>;

TEST(OverlapSchedule, KeepsTheOrderWithoutCollectives) {
  const std::vector<ScheduledNode> nodes = {work({}), work({}),  work({0}),
                                            work({}), work({1}), work({2, 4})};
  Order same(nodes.size());
  std::iota(same.begin(), same.end(), size_t{0});
  for (const bool early : {false, true}) EXPECT_EQ(schedule(nodes, {1, early}), same);
  EXPECT_TRUE(schedule({}, {}).empty());
}

TEST(OverlapSchedule, KeepsTheOrderWhereEverythingWaits) {
  const std::vector<ScheduledNode> nodes = {work({}), collective({0}), work({1}), collective({2}),
                                            work({3})};
  EXPECT_EQ(schedule(nodes, {}), (Order{0, 1, 2, 3, 4}));
}

// 1 needs nothing of the collective, nor the collective of it.
TEST(OverlapSchedule, PutsOtherWorkBesideACollective) {
  const std::vector<ScheduledNode> nodes = {work({}), work({}), work({0}), collective({2}),
                                            work({1, 3})};
  EXPECT_EQ(schedule(nodes, {}), (Order{0, 2, 3, 1, 4}));
}

TEST(OverlapSchedule, StopsWhereTheCollectiveIsHidden) {
  const std::vector<ScheduledNode> nodes = {
      work({}), work({}), work({}), work({}), collective({3}, 15), work({0, 1, 2, 4})};
  EXPECT_EQ(schedule(nodes, {}), (Order{0, 3, 4, 1, 2, 5}));
  // It may take longer than was thought.
  EXPECT_EQ(schedule(nodes, {.start_early = true}), (Order{3, 4, 0, 1, 2, 5}));
}

// Three sums of three products, and six other works that the end reads: all run beside one.
TEST(OverlapSchedule, StartsEarlySoThatAllWorkIsBesideCollectives) {
  std::vector<ScheduledNode> nodes;
  Order read;
  for (size_t i = 0; i < 6; ++i) nodes.push_back(work({}));
  for (size_t i = 0; i < 3; ++i) {
    nodes.push_back(work({}, 1));
    nodes.push_back(collective({nodes.size() - 1}, 15));
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i < 6 || nodes[i].is_collective) read.push_back(i);
  }
  nodes.push_back(work(read));
  const Order order = schedule(nodes, {.collectives = 2, .start_early = true});
  const auto place = [&](size_t node) { return std::ranges::find(order, node) - order.begin(); };
  EXPECT_LT(place(7), place(9));
  EXPECT_LT(place(9), place(11));
  for (size_t i = 0; i < 6; ++i) EXPECT_GT(place(i), place(7)) << i;
}

// The second half's product runs beside the sum of the first half.
TEST(OverlapSchedule, HalvesOverlapEachOther) {
  const std::vector<ScheduledNode> nodes = {work({}),  work({}),  collective({0}), collective({1}),
                                            work({2}), work({3}), work({4, 5})};
  for (const int limit : {1, 2}) {
    EXPECT_EQ(schedule(nodes, {.collectives = limit}), (Order{0, 2, 1, 3, 4, 5, 6})) << limit;
  }
}

TEST(OverlapSchedule, RefusesAnOrderThatCannotBe) {
  EXPECT_THROW(schedule(std::vector<ScheduledNode>{work({1}), work({})}, {}), InternalError);
}

TEST(OverlapSchedule, RandomGraphsKeepDependenciesAndTheOrderOfCollectives) {
  std::mt19937 random(7);
  for (int graph = 0; graph < 500; ++graph) {
    std::vector<ScheduledNode> nodes;
    for (size_t i = 0; i < 1 + random() % 30; ++i) {
      ScheduledNode node{{}, random() % 4 == 0, static_cast<double>(random() % 20)};
      for (size_t before = 0; before < i; ++before) {
        if (random() % 5 == 0) node.after.push_back(before);
      }
      nodes.push_back(std::move(node));
    }
    const OverlapLimits limits{1 + static_cast<int>(random() % 3), random() % 2 == 0};
    const Order order = schedule(nodes, limits);
    std::vector<size_t> place(nodes.size(), nodes.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    size_t last_collective = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      ASSERT_LT(place[i], nodes.size());
      for (const size_t before : nodes[i].after) ASSERT_LT(place[before], place[i]);
      if (!nodes[i].is_collective) continue;
      ASSERT_GE(place[i], last_collective);
      last_collective = place[i];
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
