#include "distributed/messages.h"

#include <gtest/gtest.h>

#include <vector>

#include "distributed/communicator.h"

namespace tenon::distributed {
namespace {

TEST(MessagesTest, ListsRanks) {
  EXPECT_EQ(ranks_text({}), "no rank");
  EXPECT_EQ(ranks_text(std::vector{1}), "rank 1");
  EXPECT_EQ(ranks_text(std::vector{1, 3}), "ranks 1 and 3");
  EXPECT_EQ(ranks_text(std::vector{0, 1, 7}), "ranks 0, 1 and 7");
}

TEST(MessagesTest, SaysTimesInWholeSecondsWhereTheyAre) {
  EXPECT_EQ(time_text(std::chrono::milliseconds(60'000)), "60 s");
  EXPECT_EQ(time_text(std::chrono::milliseconds(1500)), "1500 ms");
}

TEST(MessagesTest, NamesCalls) {
  EXPECT_EQ((CollectiveCall{"all_reduce", 12, 4096, DType::kF16, "sum"}.text()),
            "all_reduce #12 of f16[4096] (sum)");
  EXPECT_EQ((CollectiveCall{"all_to_all", 1, 8, DType::kU4, ""}.text()), "all_to_all #1 of u4[8]");
  EXPECT_EQ((CollectiveCall{"barrier", 3, 0, DType::kUndefined, ""}.text()), "barrier #3");
}

TEST(MessagesTest, SaysWhatARankIsIn) {
  Communicator::Progress progress;
  EXPECT_EQ(progress.text(), "has called nothing");
  progress.last_finished = {"barrier", 3, 0, DType::kUndefined, ""};
  EXPECT_EQ(progress.text(), "last finished barrier #3");
  progress.first_unfinished = {"send", 1, 2, DType::kF32, "to 1"};
  EXPECT_EQ(progress.text(), "is in send #1 of f32[2] (to 1), last finished barrier #3");
}

}  // namespace
}  // namespace tenon::distributed
