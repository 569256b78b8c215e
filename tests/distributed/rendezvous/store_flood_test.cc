// How many turns of rank 0's loop ranks take to get in while others flood the door. Everything
// happens in this thread, and chance is seeded.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "distributed/rendezvous/greeting.h"
#include "distributed/rendezvous/store_loop.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 32;
constexpr int kPerTurn = 128;  // as many as the loop takes at a time
constexpr size_t kHeld = 300;

class Flood : public testing::Test {
 protected:
  Flood() : listening_(listen_at(endpoint("127.0.0.1", 0))) {
    EXPECT_TRUE(listening_.socket) << listening_.error;
    door_ = local_endpoint(listening_.socket);
  }

  void come(int strangers) {
    for (int i = 0; i < strangers; ++i) {
      OpenedSocket opened = connect_to(door_, Clock::now() + 5s);
      ASSERT_TRUE(opened.socket) << opened.error;
      held_.push_back(std::move(opened.socket));
      if (held_.size() > kHeld) held_.pop_front();
    }
  }

  FrameChannel call() {
    OpenedSocket opened = connect_to(door_, Clock::now() + 5s);
    EXPECT_TRUE(opened.socket) << opened.error;
    return FrameChannel(std::move(opened.socket), kGreetingBytes);
  }

  // What a rank does between two turns; true once it is let in.
  bool go_on(FrameChannel& channel, std::optional<Meeting>& meeting) const {
    channel.fill();
    const auto frame = channel.next();
    if (!frame) return false;
    if (meeting) return read_verdict(*frame, *meeting) == Welcome::kAccepted;
    const Answer reply = answer(*frame, token_, door_.port());
    EXPECT_EQ(reply.objection, "");
    channel.push(reply.frame);
    channel.flush();
    meeting = reply.meeting;
    return false;
  }

  // Turns until a rank is in, with as many strangers behind it as before it in each turn.
  int turns_of_a_rank(StoreLoop& loop, int most) {
    FrameChannel channel = call();
    std::optional<Meeting> meeting;
    for (int turns = 1; turns <= most; ++turns) {
      come(kPerTurn / 2);
      loop.turn();
      if (go_on(channel, meeting)) return turns;
      if (!channel.ended().empty()) {  // it was hit
        come(kPerTurn / 2);
        channel = call();
        meeting.reset();
      }
    }
    return most + 1;
  }

  OpenedSocket listening_;
  Endpoint door_;
  std::deque<Socket> held_;
  const JobToken token_ = sha256("the token of a test");
};

TEST_F(Flood, KeepsNoRankOutForMoreThanSomeTurns) {
  std::mt19937_64 random(5);
  StoreServer::Settings settings{.size = kRanks + 1, .token = token_};
  settings.random = [&random] { return random(); };
  settings.beat = 10ms;
  StoreLoop loop(std::move(listening_.socket), settings);
  come(2 * kPerTurn);
  loop.turn();
  loop.turn();
  int most = 0, all = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int turns = turns_of_a_rank(loop, 200);
    most = std::max(most, turns);
    all += turns;
  }
  // A call that is not hit takes two or three turns, and about every second is hit.
  EXPECT_LE(most, 40);
  EXPECT_LE(all, kRanks * 10);
}

}  // namespace
}  // namespace tenon::distributed
