// What rank 0's thread does for the store, turn by turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/rendezvous/announcements.h"
#include "distributed/rendezvous/failure_account.h"
#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/greeting.h"
#include "distributed/rendezvous/store_message.h"
#include "distributed/rendezvous/store_server.h"

namespace tenon::distributed {

class StoreLoop {
 public:
  StoreLoop(Socket listening, const StoreServer::Settings& settings);

  void run();   // until stop(), and then the last words
  void stop();  // from another thread
  // Waits for news, hears who has something to say and lets in who has come.
  void turn();

 private:
  struct Peer {
    FrameChannel channel;
    std::string address;
    Clock::time_point since, heard;  // since: of its phase
    Nonce nonce{};
    enum class Phase { kGreeting, kKnown, kMember, kParting } phase = Phase::kGreeting;
    bool has_token = false;
    int rank = -1;  // of a member

    bool has_joined() const { return phase == Phase::kMember || phase == Phase::kParting; }
    void part(Clock::time_point now) {
      phase = Phase::kParting;
      since = now;
    }
  };

  struct Member {
    enum class State { kAbsent, kPresent, kGone } state = State::kAbsent;
    std::string process;  // "pid 12 on host"
  };

  void wait();
  void accept_all();
  void drop_a_stranger();
  void turn_away(Peer& peer, const std::string& why);

  void serve(Peer& peer);
  void greet(Peer& peer, std::string_view frame);
  void take(Peer& peer, StoreMessage message);
  void join(Peer& peer, const StoreMessage& message);
  std::string refusal_of(const StoreMessage& message) const;
  bool somebody_is_absent() const;
  void close_door_when_complete();
  void check_time(Peer& peer);
  void beat_when_due();
  void flush_and_forget();
  void part();

  void send_to_members(const StoreMessage& message, int except);
  void fail(const StoreMessage& failure, bool is_loss = false);
  void tell_failures_when_due(bool now);
  void lose(int rank, const std::string& why);

  Socket listening_;
  const StoreServer::Settings settings_;
  const uint16_t port_;
  const std::string where_;  // and strangers_: for those who wait for ranks to join
  const std::function<uint64_t()> random_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Announcements announced_;
  FailureAccount account_;
  std::optional<StoreMessage> first_failure_;
  bool over_ = false;  // rank 0 has left: the others go as they like
  int turned_away_ = 0;
  std::string strangers_;
  Clock::time_point now_ = Clock::now(), next_beat_ = now_, no_accept_until_ = now_;
  std::atomic<bool> stopping_ = false;
  Waker waker_;
};

}  // namespace tenon::distributed
