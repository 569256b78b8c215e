#include "distributed/rendezvous/store_loop.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"

namespace tenon::distributed {
namespace {

using Kind = StoreMessage::Kind;

constexpr std::chrono::milliseconds kGreetingTime{2000};  // for one who has not shown the token
constexpr std::chrono::milliseconds kPartingTime{1000};   // for one to whom the last was said
constexpr std::chrono::milliseconds kLateTime{500};       // to tell ranks that come after a failure
constexpr std::chrono::milliseconds kPause{50};
constexpr size_t kMostStrangers = 128;
constexpr size_t kLongestProcess = 300;  // "pid 12 on host": it stands in messages

std::string text(int rank, const std::string& process) {
  return fmt::format("rank {} ({})", rank, process);
}

std::function<uint64_t()> unforeseen() {
  return [engine = std::mt19937_64(std::random_device{}())]() mutable { return engine(); };
}

}  // namespace

StoreLoop::StoreLoop(Socket listening, const StoreServer::Settings& settings)
    : listening_(std::move(listening)),
      settings_(settings),
      port_(local_endpoint(listening_).port()),
      where_(fmt::format("rank 0 listens at {}", local_endpoint(listening_).text())),
      random_(settings.random ? settings.random : unforeseen()),
      members_(static_cast<size_t>(settings.size)),
      announced_(settings.size),
      account_(settings.size) {}

void StoreLoop::stop() {
  stopping_ = true;
  waker_.wake();
}

void StoreLoop::run() try {
  while (!stopping_) turn();
  const auto limit = now_ + kLateTime;
  while (listening_ && first_failure_ && somebody_is_absent() && now_ < limit) turn();
  part();
} catch (const std::exception&) {
  // Memory or entropy is short, so nothing can be said: closed connections tell all ranks.
  listening_.close();
  peers_.clear();
}

void StoreLoop::turn() {
  wait();
  // Who has answered is heard before others come: they may be many.
  for (const auto& peer : peers_) serve(*peer);
  for (const auto& peer : peers_) check_time(*peer);
  close_door_when_complete();
  if (listening_ && now_ >= no_accept_until_) accept_all();
  tell_failures_when_due(false);
  beat_when_due();
  flush_and_forget();
}

void StoreLoop::wait() {
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

void StoreLoop::accept_all() {
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
      drop_a_stranger();
      no_accept_until_ = now_ + kPause;
      return;
    }
    const auto strangers = std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer->phase == Peer::Phase::kGreeting;
    });
    if (strangers >= std::ptrdiff_t{kMostStrangers}) drop_a_stranger();
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

// Any of them: whoever floods us cannot choose who goes. A rank that is hit comes again.
void StoreLoop::drop_a_stranger() {
  std::vector<size_t> strangers;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i]->phase == Peer::Phase::kGreeting) strangers.push_back(i);
  }
  if (strangers.empty()) return;
  const size_t chosen = strangers[random_() % strangers.size()];
  peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(chosen));
}

void StoreLoop::turn_away(Peer& peer, const std::string& why) {
  ++turned_away_;
  strangers_ = fmt::format("; {} connection{} turned away, the last from {}: {}", turned_away_,
                           turned_away_ == 1 ? " was" : "s were", peer.address, why);
  peer.part(now_);
}

void StoreLoop::serve(Peer& peer) {
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

void StoreLoop::greet(Peer& peer, std::string_view frame) {
  const Verdict verdict = judge(frame, peer.nonce, settings_.token, port_);
  peer.channel.push(verdict.frame);
  if (!verdict.accepted) return turn_away(peer, verdict.reason);
  peer.channel.sign_frames(verdict.keys);
  peer.has_token = true;
  peer.phase = Peer::Phase::kKnown;
  peer.channel.set_longest(kLongestFrame);
}

void StoreLoop::take(Peer& peer, StoreMessage message) {
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

std::string StoreLoop::refusal_of(const StoreMessage& message) const {
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

void StoreLoop::join(Peer& peer, const StoreMessage& message) {
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

bool StoreLoop::somebody_is_absent() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.state == Member::State::kAbsent; });
}

// From then on nobody can come in, and the port is free for the next group.
void StoreLoop::close_door_when_complete() {
  if (!listening_ || first_failure_ || somebody_is_absent()) return;
  listening_.close();
  std::erase_if(peers_, [](const auto& peer) { return !peer->has_joined(); });
}

void StoreLoop::check_time(Peer& peer) {
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

void StoreLoop::beat_when_due() {
  if (now_ < next_beat_) return;
  next_beat_ = now_ + settings_.beat;
  send_to_members({.kind = Kind::kBeat, .rank = 0, .value = where_ + strangers_}, -1);
}

void StoreLoop::flush_and_forget() {
  for (const auto& peer : peers_) {
    if (peer->channel.fd() >= 0) peer->channel.flush();
    if (peer->channel.ended().empty()) continue;
    if (peer->phase == Peer::Phase::kMember) lose(peer->rank, peer->channel.ended());
    peer->channel.close();
  }
  std::erase_if(peers_, [](const auto& peer) { return peer->channel.fd() < 0; });
}

// The ranks hear that rank 0 is done, and go themselves; one that does not is not waited for.
void StoreLoop::part() {
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

void StoreLoop::send_to_members(const StoreMessage& message, int except) {
  const std::string frame = encode(message);
  for (const auto& peer : peers_) {
    if (peer->phase == Peer::Phase::kMember && peer->rank != except) peer->channel.push(frame);
  }
}

// Once all are in, they are asked how far they came before they hear of the first failure.
void StoreLoop::fail(const StoreMessage& failure, bool is_loss) {
  const bool is_first = !first_failure_;
  if (is_first) first_failure_ = failure;
  if (listening_ || (!is_first && !account_.is_open())) return send_to_members(failure, -1);
  account_.add(failure, is_loss, now_);
  if (is_first) send_to_members({.kind = Kind::kAsk}, -1);
}

void StoreLoop::tell_failures_when_due(bool now) {
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

void StoreLoop::lose(int rank, const std::string& why) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (over_ || member.state != Member::State::kPresent) return;
  member.state = Member::State::kGone;
  fail({.kind = Kind::kFailed,
        .rank = rank,
        .value = fmt::format("{} is lost: {}", text(rank, member.process), why)},
       true);
}

}  // namespace tenon::distributed
