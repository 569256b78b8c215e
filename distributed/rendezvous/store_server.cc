#include "distributed/rendezvous/store_server.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>

#include "base/error.h"
#include "distributed/rendezvous/announcements.h"
#include "distributed/rendezvous/failure_account.h"
#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/greeting.h"
#include "distributed/rendezvous/quiet_thread.h"
#include "distributed/rendezvous/store_message.h"

namespace tenon::distributed {
namespace {

using Kind = StoreMessage::Kind;

constexpr std::chrono::milliseconds kGreetingTime{2000};  // for one who has not shown the token
constexpr std::chrono::milliseconds kPartingTime{1000};   // for one to whom the last was said
constexpr std::chrono::milliseconds kLateTime{500};       // to tell ranks that come after a failure
constexpr std::chrono::milliseconds kPortTime{2000};      // for a port to become free
constexpr std::chrono::milliseconds kPause{50};
constexpr size_t kMostStrangers = 128;
constexpr size_t kLongestProcess = 300;  // "pid 12 on host": it stands in messages

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

std::string text(int rank, const std::string& process) {
  return fmt::format("rank {} ({})", rank, process);
}

}  // namespace

class StoreServer::Loop {
 public:
  Loop(Socket listening, const Settings& settings)
      : listening_(std::move(listening)),
        settings_(settings),
        port_(local_endpoint(listening_).port()),
        where_(fmt::format("rank 0 listens at {}", local_endpoint(listening_).text())),
        members_(static_cast<size_t>(settings.size)),
        announced_(settings.size),
        account_(settings.size),
        thread_(quiet_thread([this] { run(); })) {}

  ~Loop() {
    stopping_ = true;
    waker_.wake();
    thread_.join();
  }

 private:
  void run();
  void turn();
  void wait();
  void accept_all();
  void drop_oldest_stranger();
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
  const Settings settings_;
  const uint16_t port_;
  const std::string where_;  // and strangers_: for those who wait for ranks to join
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
  std::thread thread_;  // last: it uses all of the above
};

void StoreServer::Loop::run() try {
  while (!stopping_) turn();
  const auto limit = now_ + kLateTime;
  while (listening_ && first_failure_ && somebody_is_absent() && now_ < limit) turn();
  part();
} catch (const std::exception&) {
  // Memory or entropy is short, so nothing can be said: closed connections tell all ranks.
  listening_.close();
  peers_.clear();
}

void StoreServer::Loop::turn() {
  wait();
  if (listening_ && now_ >= no_accept_until_) accept_all();
  for (const auto& peer : peers_) serve(*peer);
  for (const auto& peer : peers_) check_time(*peer);
  close_door_when_complete();
  tell_failures_when_due(false);
  beat_when_due();
  flush_and_forget();
}

void StoreServer::Loop::wait() {
  std::vector<pollfd> entries{{.fd = waker_.fd(), .events = POLLIN, .revents = 0}};
  if (listening_ && now_ >= no_accept_until_) {
    entries.push_back({.fd = listening_.fd(), .events = POLLIN, .revents = 0});
  }
  for (const auto& peer : peers_) {
    const int events = peer->channel.has_output() ? POLLIN | POLLOUT : POLLIN;
    entries.push_back(
        {.fd = peer->channel.fd(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  const auto until = account_.is_open() ? std::min(account_.due(), next_beat_) : next_beat_;
  (void)::poll(entries.data(), entries.size(), poll_milliseconds(until));
  waker_.clear();
  now_ = Clock::now();
}

void StoreServer::Loop::accept_all() {
  // Not without end: who floods us must not keep us from the ranks.
  for (size_t count = 0; count < kMostStrangers; ++count) {
    Endpoint from;
    from.length = sizeof(from.address);
    Socket socket(::accept4(listening_.fd(), reinterpret_cast<sockaddr*>(&from.address),
                            &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // No descriptor or memory is left; the door would stay ready and keep us awake.
      drop_oldest_stranger();
      no_accept_until_ = now_ + kPause;
      return;
    }
    const auto strangers = std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer->phase == Peer::Phase::kGreeting;
    });
    if (strangers >= std::ptrdiff_t{kMostStrangers}) drop_oldest_stranger();
    tune_connection(socket, settings_.silence);
    peers_.push_back(
        std::make_unique<Peer>(Peer{.channel = FrameChannel(std::move(socket), kGreetingBytes),
                                    .address = from.text(),
                                    .since = now_,
                                    .heard = now_,
                                    .nonce = new_nonce()}));
    peers_.back()->channel.push(challenge(peers_.back()->nonce));
  }
}

// Peers stand in the order in which they came. A rank that is hit while it greets comes again.
void StoreServer::Loop::drop_oldest_stranger() {
  const auto oldest = std::find_if(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->phase == Peer::Phase::kGreeting;
  });
  if (oldest != peers_.end()) peers_.erase(oldest);
}

void StoreServer::Loop::turn_away(Peer& peer, const std::string& why) {
  ++turned_away_;
  strangers_ = fmt::format("; {} connection{} turned away, the last from {}: {}", turned_away_,
                           turned_away_ == 1 ? " was" : "s were", peer.address, why);
  peer.part(now_);
}

void StoreServer::Loop::serve(Peer& peer) {
  if (peer.channel.fill()) peer.heard = now_;
  while (peer.phase != Peer::Phase::kParting) {
    const std::optional<std::string> frame = peer.channel.next();
    if (!frame) break;
    try {
      if (peer.phase == Peer::Phase::kGreeting) {
        greet(peer, *frame);
      } else {
        take(peer, decode(*frame));
      }
    } catch (const UserError& error) {
      if (peer.rank >= 0) lose(peer.rank, error.what());
      peer.part(now_);
    }
  }
  if (peer.channel.ended().empty()) return;
  if (peer.phase == Peer::Phase::kMember) lose(peer.rank, peer.channel.ended());
  if (!peer.has_joined() && peer.channel.broke_rules()) turn_away(peer, peer.channel.ended());
  peer.channel.close();
}

void StoreServer::Loop::greet(Peer& peer, std::string_view frame) {
  const Verdict verdict = judge(frame, peer.nonce, settings_.token, port_);
  peer.channel.push(verdict.frame);
  if (!verdict.accepted) return turn_away(peer, verdict.reason);
  peer.channel.sign_frames(verdict.keys);
  peer.has_token = true;
  peer.phase = Peer::Phase::kKnown;
  peer.channel.set_longest(kLongestFrame);
}

void StoreServer::Loop::take(Peer& peer, StoreMessage message) {
  if (peer.phase == Peer::Phase::kKnown) {
    if (message.kind != Kind::kJoin) throw UserError("it spoke before it joined");
    message.value.resize(std::min(message.value.size(), kLongestProcess));
    return join(peer, message);
  }
  Member& member = members_[static_cast<size_t>(peer.rank)];
  message.rank = peer.rank;
  switch (message.kind) {
    case Kind::kPost:
      return send_to_members(message, peer.rank);
    case Kind::kFailed:
      if (!message.key.empty()) account_.heard(peer.rank, message.key, true);
      message.key.clear();
      if (member.state == Member::State::kGone) return;
      member.state = Member::State::kGone;
      message.value = fmt::format("{} failed: {}", text(peer.rank, member.process), message.value);
      return fail(message);
    case Kind::kSame: {
      if (first_failure_) return;
      const std::string text = announced_.take(peer.rank, message.key, message.value);
      if (text.empty()) return;
      return fail({.kind = Kind::kFailed, .rank = peer.rank, .value = text});
    }
    case Kind::kLeave:
      tell_failures_when_due(true);  // who hears that rank 0 left hears nothing more
      if (member.state == Member::State::kPresent) send_to_members(message, peer.rank);
      member.state = Member::State::kGone;
      over_ = over_ || peer.rank == 0;
      return peer.part(now_);
    case Kind::kBeat:
      return account_.heard(peer.rank, message.value, !message.key.empty());
    default:
      throw UserError("it sent what only the server says");
  }
}

std::string StoreServer::Loop::refusal_of(const StoreMessage& message) const {
  const std::string who = text(message.rank, message.value);
  if (message.size != settings_.size) {
    return fmt::format("{} was started as one of {} ranks, rank 0 as one of {}", who, message.size,
                       settings_.size);
  }
  if (message.rank < 0 || message.rank >= settings_.size) {
    return fmt::format("{} is none of {} ranks", who, settings_.size);
  }
  const Member& member = members_[static_cast<size_t>(message.rank)];
  if (member.state == Member::State::kAbsent) return "";
  return fmt::format("two processes were started as rank {}: {} and {}", message.rank,
                     member.process, message.value);
}

void StoreServer::Loop::join(Peer& peer, const StoreMessage& message) {
  if (!first_failure_) {
    const std::string refusal = refusal_of(message);
    if (!refusal.empty()) {
      fail({.kind = Kind::kFailed, .rank = message.rank, .value = refusal});
    }
  }
  if (first_failure_) {
    peer.channel.push(encode(*first_failure_));
    peer.part(now_);
    if (message.rank < 0 || message.rank >= settings_.size) return;
    Member& told = members_[static_cast<size_t>(message.rank)];
    if (told.state == Member::State::kAbsent) told.state = Member::State::kGone;
    return;
  }
  members_[static_cast<size_t>(message.rank)] = {Member::State::kPresent, message.value};
  peer.phase = Peer::Phase::kMember;
  peer.rank = message.rank;
  StoreMessage joined = message;
  joined.kind = Kind::kJoined;
  send_to_members(joined, -1);
  for (int rank = 0; rank < settings_.size; ++rank) {
    const Member& other = members_[static_cast<size_t>(rank)];
    if (rank == message.rank || other.state != Member::State::kPresent) continue;
    joined.rank = rank;
    joined.value = other.process;
    peer.channel.push(encode(joined));
  }
}

bool StoreServer::Loop::somebody_is_absent() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.state == Member::State::kAbsent; });
}

// From then on nobody can come in, and the port is free for the next group.
void StoreServer::Loop::close_door_when_complete() {
  if (!listening_ || first_failure_ || somebody_is_absent()) return;
  listening_.close();
  std::erase_if(peers_, [](const auto& peer) { return !peer->has_joined(); });
}

void StoreServer::Loop::check_time(Peer& peer) {
  const auto patience = peer.phase == Peer::Phase::kGreeting ? kGreetingTime : settings_.silence;
  if (!peer.has_joined() && now_ - peer.since > patience) {
    turn_away(peer, "it said nothing that a rank says");
    peer.channel.close();
  }
  if (peer.phase == Peer::Phase::kParting && now_ - peer.since > kPartingTime) {
    peer.channel.close();
  }
  if (peer.phase != Peer::Phase::kMember || now_ - peer.heard <= settings_.silence) return;
  lose(peer.rank, fmt::format("nothing was heard of it for {} ms", settings_.silence.count()));
  peer.part(now_);
}

void StoreServer::Loop::beat_when_due() {
  if (now_ < next_beat_) return;
  next_beat_ = now_ + settings_.beat;
  send_to_members({.kind = Kind::kBeat, .rank = 0, .value = where_ + strangers_}, -1);
}

void StoreServer::Loop::flush_and_forget() {
  for (const auto& peer : peers_) {
    if (peer->channel.fd() >= 0) peer->channel.flush();
    if (peer->channel.ended().empty()) continue;
    if (peer->phase == Peer::Phase::kMember) lose(peer->rank, peer->channel.ended());
    peer->channel.close();
  }
  std::erase_if(peers_, [](const auto& peer) { return peer->channel.fd() < 0; });
}

// The ranks hear that rank 0 is done, and go themselves; one that does not is not waited for.
void StoreServer::Loop::part() {
  listening_.close();
  for (const auto& peer : peers_) serve(*peer);
  tell_failures_when_due(true);
  if (members_[0].state == Member::State::kPresent) {
    send_to_members({.kind = Kind::kLeave, .rank = 0}, 0);
  }
  std::erase_if(peers_, [](const auto& peer) { return !peer->has_token; });
  for (const auto& peer : peers_) peer->part(now_);
  next_beat_ = now_ + kPartingTime;
  for (flush_and_forget(); !peers_.empty() && now_ < next_beat_; flush_and_forget()) {
    wait();
    for (const auto& peer : peers_) serve(*peer);
  }
}

void StoreServer::Loop::send_to_members(const StoreMessage& message, int except) {
  const std::string frame = encode(message);
  for (const auto& peer : peers_) {
    if (peer->phase == Peer::Phase::kMember && peer->rank != except) peer->channel.push(frame);
  }
}

// Once all are in, they are asked how far they came before they hear of the first failure.
void StoreServer::Loop::fail(const StoreMessage& failure, bool is_loss) {
  const bool is_first = !first_failure_;
  if (is_first) first_failure_ = failure;
  if (listening_ || (!is_first && !account_.is_open())) return send_to_members(failure, -1);
  account_.add(failure, is_loss, now_);
  if (is_first) send_to_members({.kind = Kind::kAsk}, -1);
}

void StoreServer::Loop::tell_failures_when_due(bool now) {
  if (!account_.is_open()) return;
  const bool somebody_may_answer = std::ranges::any_of(peers_, [&](const auto& peer) {
    return peer->phase == Peer::Phase::kMember && peer->channel.fd() >= 0 &&
           !account_.has_answer_of(peer->rank);
  });
  if (!now && somebody_may_answer && now_ < account_.due()) return;
  for (const StoreMessage& failure : account_.take()) {
    const std::string frame = encode(failure);
    for (const auto& peer : peers_) {
      // Also to whom it is about: it may only have been stopped.
      if (peer->has_joined() && peer->channel.fd() >= 0) peer->channel.push(frame);
    }
  }
}

void StoreServer::Loop::lose(int rank, const std::string& why) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (over_ || member.state != Member::State::kPresent) return;
  member.state = Member::State::kGone;
  fail({.kind = Kind::kFailed,
        .rank = rank,
        .value = fmt::format("{} is lost: {}", text(rank, member.process), why)},
       true);
}

StoreServer::StoreServer(Socket listening, const Settings& settings)
    : loop_(std::make_unique<Loop>(std::move(listening), settings)) {}

StoreServer::~StoreServer() = default;

Socket listen_at_first(const std::string& host, const std::vector<uint16_t>& ports,
                       Clock::time_point limit) {
  limit = std::min(limit, Clock::now() + kPortTime);
  while (true) {
    std::string errors;
    bool taken = false;
    for (const Endpoint& endpoint : resolve(host, ports)) {
      OpenedSocket opened = listen_at(endpoint);
      if (opened.socket) return std::move(opened.socket);
      errors += fmt::format("{}{}: {}", errors.empty() ? "" : "; ", endpoint.text(), opened.error);
      taken = taken || opened.error_number == EADDRINUSE;
    }
    if (!taken || Clock::now() >= limit) {
      throw UserError(
          fmt::format("rank 0 cannot listen for the other ranks at {} ({}). Give "
                      "collective_address=host:port with an address of rank 0's host and a port "
                      "that is free there",
                      host, errors));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tenon::distributed
