#include "distributed/rendezvous/failure_account.h"

#include <gtest/gtest.h>

namespace tenon::distributed {
namespace {

using Kind = StoreMessage::Kind;

StoreMessage failure(int rank, const std::string& text) {
  return {.kind = Kind::kFailed, .rank = rank, .value = text};
}

TEST(FailureAccount, LossesComeBeforeTheReportsOfThoseWhoMissThem) {
  FailureAccount account(3);
  const Clock::time_point now = Clock::now();
  EXPECT_FALSE(account.is_open());
  account.add(failure(0, "rank 2 is missing"), false, now);
  EXPECT_TRUE(account.is_open());
  account.add(failure(2, "rank 2 is lost"), true, now);
  account.add(failure(1, "rank 2 is missing, too"), false, now);
  const auto told = account.take();
  ASSERT_EQ(told.size(), 3);
  EXPECT_EQ(told[0].value, "rank 2 is lost");
  EXPECT_EQ(told[1].value, "rank 2 is missing");
  EXPECT_FALSE(account.is_open());
}

TEST(FailureAccount, TheFirstHasHowFarAllCame) {
  FailureAccount account(3);
  account.heard(0, "is in barrier #2", true);
  account.heard(2, "last finished barrier #1", false);
  EXPECT_TRUE(account.has_answer_of(0));
  EXPECT_FALSE(account.has_answer_of(2));
  account.add(failure(1, "why"), false, Clock::now());
  account.add(failure(2, "more"), false, Clock::now());
  const auto told = account.take();
  EXPECT_EQ(told[0].value,
            "why (rank 0 is in barrier #2; rank 2, when it was last heard of, last finished "
            "barrier #1)");
  EXPECT_EQ(told[1].value, "more");
}

}  // namespace
}  // namespace tenon::distributed
