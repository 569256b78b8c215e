#include "distributed/rendezvous/store_member.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/rendezvous/connect.h"
#include "distributed/rendezvous/quiet_thread.h"

namespace tenon::distributed {
namespace {

using Kind = StoreMessage::Kind;
using Milliseconds = Store::Milliseconds;

constexpr Milliseconds kLeavingTime{500};  // for the last words, to a server that may not read

std::string this_process() {
  char host[256] = "an unnamed host";
  (void)::gethostname(host, sizeof(host) - 1);
  return fmt::format("pid {} on {}", ::getpid(), host);
}

StoreMessage message_of(Kind kind, int rank, std::string key = {}, std::string value = {}) {
  return {.kind = kind, .rank = rank, .key = std::move(key), .value = std::move(value)};
}

}  // namespace

StoreMember::StoreMember(const LaunchPlace& place, Store::Settings given)
    : rank(place.rank),
      size(place.size),
      settings(std::move(given)),
      beat_(std::clamp(settings.silence / 8, Milliseconds(10), Milliseconds(250))),
      join_limit_(Clock::now() + settings.deadline),
      pid_(::getpid()),
      ranks_(static_cast<size_t>(place.size)) {
  if (size == 1) {
    ranks_[0].process = this_process();
    return;
  }
  LaunchPlace target = place;
  if (rank == 0) {
    Socket listening = listen_at_first(place.host, place.ports, join_limit_);
    target.ports = {local_endpoint(listening).port()};
    server_ = std::make_unique<StoreServer>(
        std::move(listening),
        StoreServer::Settings{
            .size = size, .token = place.token, .silence = settings.silence, .beat = beat_});
  }
  channel_ = connect_to_store(target, join_limit_, settings.deadline, settings.silence);
  StoreMessage join = message_of(Kind::kJoin, rank, {}, this_process());
  join.size = size;
  channel_->push(encode(join));
  heard_ = Clock::now();
  thread_ = quiet_thread([this] { run(); });
}

StoreMember::~StoreMember() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  waker_.wake();
  thread_.join();
}

void StoreMember::run() {
  auto next_beat = Clock::now();
  while (true) {
    wait_for_news(next_beat);
    std::unique_lock lock(mutex_);
    if (leaving_) return say_goodbye();
    const bool goes_on = read_news();
    if (goes_on && (asked_ || Clock::now() >= next_beat)) {
      next_beat = Clock::now() + beat_;
      say_how_far(lock);
    }
    tell_losses(lock);
    news_.notify_all();
    if (!goes_on) return;
  }
}

// A beat, and the answer to the server when it asks.
void StoreMember::say_how_far(std::unique_lock<std::mutex>& lock) {
  const bool asked = std::exchange(asked_, false);
  lock.unlock();
  std::string how_far = progress();
  lock.lock();
  channel_->push(encode(message_of(Kind::kBeat, rank, asked ? "asked" : "", std::move(how_far))));
  channel_->flush();
}

std::string StoreMember::progress() const {
  return settings.progress ? settings.progress().substr(0, kLongestKey) : "";
}

void StoreMember::wait_for_news(Clock::time_point until) {
  pollfd entries[2] = {{.fd = waker_.fd(), .events = POLLIN, .revents = 0},
                       {.fd = -1, .events = POLLIN, .revents = 0}};
  {
    const std::lock_guard lock(mutex_);
    entries[1].fd = channel_->fd();
    if (channel_->has_output()) entries[1].events = POLLIN | POLLOUT;
  }
  (void)::poll(entries, 2, poll_milliseconds(until));
  waker_.clear();
}

// False: there is no connection any more. Silence is judged after reading, so that a rank that was
// stopped itself does not blame the others.
bool StoreMember::read_news() try {
  channel_->flush();
  const auto now = Clock::now();
  if (channel_->fill()) heard_ = now;
  while (const std::optional<std::string> frame = channel_->next()) take(decode(*frame));
  const bool over = ranks_[0].left && rank != 0;
  const std::string store = fmt::format("{}, which serves the store, ", name(0));
  if (!over && !channel_->ended().empty()) {
    lose(0, fmt::format("{}is lost: {}", store, channel_->ended()));
  } else if (now - heard_ > settings.silence) {
    lose(0, fmt::format("{}is lost: nothing was heard of it for {} ms", store,
                        settings.silence.count()));
  } else if (!over) {
    return true;
  }
  channel_->close();
  return false;
} catch (const UserError& error) {
  lose(0, fmt::format("{} sent what no store sends: {}", name(0), error.what()));
  channel_->close();
  return false;
}

void StoreMember::take(StoreMessage message) {
  const bool known = message.rank >= 0 && message.rank < size;
  if (message.kind == Kind::kBeat) {
    note_ = std::move(message.value);
  } else if (message.kind == Kind::kAsk) {
    asked_ = true;
  } else if (message.kind == Kind::kFailed) {
    if (!verdict_) verdict_ = message.value;
    lose(message.rank, message.value);
  } else if (!known) {
    throw UserError(fmt::format("rank {} of {}", message.rank, size));
  } else if (message.kind == Kind::kJoined) {
    ranks_[static_cast<size_t>(message.rank)].process = std::move(message.value);
  } else if (message.kind == Kind::kPost) {
    values_[{message.rank, std::move(message.key)}] = std::move(message.value);
  } else if (message.kind == Kind::kLeave) {
    ranks_[static_cast<size_t>(message.rank)].left = true;
  }
}

void StoreMember::lose(int lost, const std::string& reason) {
  if (lost >= 0 && lost < size && std::exchange(ranks_[static_cast<size_t>(lost)].lost, true)) {
    return;
  }
  if (!failure_) failure_ = reason;
  untold_.emplace_back(lost, reason);
}

void StoreMember::tell_losses(std::unique_lock<std::mutex>& lock) {
  const auto losses = std::exchange(untold_, {});
  if (losses.empty() || !settings.on_lost) return;
  lock.unlock();
  news_.notify_all();  // who waits does not wait for the callback
  for (const auto& [lost, reason] : losses) {
    try {
      settings.on_lost(lost, reason);
    } catch (const std::exception&) {
      // The others are to be told all the same; nobody stands above this thread.
    }
  }
  lock.lock();
}

// Closing at once could throw away what has not been sent, and make this rank a lost one.
void StoreMember::say_goodbye() {
  const auto limit = Clock::now() + kLeavingTime;
  channel_->push(encode(message_of(Kind::kLeave, rank)));
  bool half_closed = false;
  while (channel_->ended().empty() && Clock::now() < limit) {
    channel_->flush();
    if (!channel_->has_output() && !std::exchange(half_closed, true)) {
      ::shutdown(channel_->fd(), SHUT_WR);
    }
    pollfd entry{.fd = channel_->fd(),
                 .events = static_cast<int16_t>(half_closed ? POLLIN : POLLIN | POLLOUT),
                 .revents = 0};
    (void)::poll(&entry, 1, poll_milliseconds(limit));
    (void)channel_->fill();
  }
  channel_->close();
}

// From the caller's thread, to save a change of threads.
void StoreMember::send(const StoreMessage& message) {
  if (!channel_ || channel_->fd() < 0) return;
  channel_->push(encode(message));
  channel_->flush();
  if (channel_->has_output()) waker_.wake();
}

std::string StoreMember::next_round(std::string_view name) {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  return fmt::format("round {} of {}", ++rounds_[std::string(name)], name);
}

void StoreMember::post(const std::string& key, std::string_view value) {
  check_not_forked();
  if (key.size() > kLongestKey || value.size() > kLongestValue) {
    throw InternalError(
        fmt::format("the store takes keys of {} and values of {} bytes, not {} and {}", kLongestKey,
                    kLongestValue, key.size(), value.size()));
  }
  const std::lock_guard lock(mutex_);
  if (failure_) throw CollectiveError(*failure_);
  values_[{rank, key}] = value;
  send(message_of(Kind::kPost, rank, key, std::string(value)));
}

void StoreMember::announce(const std::string& key, std::string word) {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  if (failure_) throw CollectiveError(*failure_);
  send(message_of(Kind::kSame, rank, key, std::move(word)));
}

std::vector<std::string> StoreMember::wait_for(const Wanted& wanted) {
  check_not_forked();
  const auto limit = Clock::now() + wanted.deadline;
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) throw CollectiveError(*failure_);
    std::vector<int> missing;
    for (const int owner : wanted.ranks) {
      if (!values_.contains({owner, wanted.key})) missing.push_back(owner);
    }
    if (missing.empty()) break;
    if (const auto reason = hopeless(missing, wanted.what)) throw CollectiveError(*reason);
    if (Clock::now() >= limit) {
      const std::string error = too_late(missing, wanted.what, wanted.deadline);
      if (wanted.by_all) give_up(error);
      throw CollectiveError(error);
    }
    news_.wait_until(lock, limit);
  }
  std::vector<std::string> values;
  for (const int owner : wanted.ranks) {
    const auto found = values_.find({owner, wanted.key});
    values.push_back(found->second);
    if (wanted.by_all) values_.erase(found);
  }
  return values;
}

void StoreMember::wait_for_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) throw CollectiveError(*failure_);
    std::vector<int> missing;
    for (int other = 0; other < size; ++other) {
      if (ranks_[static_cast<size_t>(other)].process.empty()) missing.push_back(other);
    }
    if (missing.empty()) return;
    if (const auto reason = hopeless(missing, "join")) throw CollectiveError(*reason);
    if (Clock::now() >= join_limit_) {
      std::string error = too_late(missing, "join", settings.deadline);
      if (!note_.empty()) error += fmt::format(" ({})", note_);
      give_up(error);
    }
    news_.wait_until(lock, join_limit_);
  }
}

// Nothing is said of ranks whose values have come: what is complete succeeds, whoever is lost
// since.
std::optional<std::string> StoreMember::hopeless(const std::vector<int>& missing,
                                                 const std::string& what) const {
  std::vector<int> left;
  for (const int other : missing) {
    if (ranks_[static_cast<size_t>(other)].left) left.push_back(other);
  }
  if (left.empty() && ranks_[0].left) left = {0};  // nobody else can be heard without it
  if (left.empty()) return std::nullopt;
  return fmt::format("{} left and did not {}", names(left), what);
}

std::string StoreMember::too_late(const std::vector<int>& missing, const std::string& what,
                                  Milliseconds deadline) const {
  const auto silent = std::chrono::duration_cast<Milliseconds>(Clock::now() - heard_);
  // All look late when it is the store that does not answer.
  if (channel_ && silent > 3 * beat_) {
    return fmt::format(
        "{}, which serves the store, has not been heard of for {} ms: nobody did {} "
        "within {} ms",
        name(0), silent.count(), what, deadline.count());
  }
  return fmt::format("{} did not {} within {} ms", names(missing), what, deadline.count());
}

void StoreMember::give_up(const std::string& error) {
  report_locked(error, "");
  throw CollectiveError(error);
}

void StoreMember::report(const std::string& reason) {
  check_not_forked();
  const std::string how_far = progress();
  const std::lock_guard lock(mutex_);
  report_locked(reason, how_far);
}

void StoreMember::report_locked(const std::string& reason, const std::string& how_far) {
  if (std::exchange(ranks_[static_cast<size_t>(rank)].lost, true)) return;
  std::string text = reason.substr(0, kLongestValue / 2);  // the server adds who said it
  if (!failure_) failure_ = fmt::format("{} failed: {}", name(rank), text);
  send(message_of(Kind::kFailed, rank, how_far, std::move(text)));
  news_.notify_all();
}

std::optional<std::string> StoreMember::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<std::string> StoreMember::verdict(Milliseconds wait) const {
  check_not_forked();
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, wait, [&] { return verdict_ || !channel_ || channel_->fd() < 0; });
  return verdict_;
}

std::string StoreMember::process(int of) const {
  const std::lock_guard lock(mutex_);
  return ranks_.at(static_cast<size_t>(of)).process;
}

bool StoreMember::is_forked_copy() const { return ::getpid() != pid_; }

void StoreMember::check_not_forked() const {
  if (!is_forked_copy()) return;
  throw CollectiveError(fmt::format(
      "this process was forked from rank {} and is not that rank; start ranks by exec", rank));
}

std::string StoreMember::name(int of) const {
  const std::string& process = ranks_[static_cast<size_t>(of)].process;
  return process.empty() ? fmt::format("rank {}", of) : fmt::format("rank {} ({})", of, process);
}

std::string StoreMember::names(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += name(ranks[i]);
  }
  return text;
}

}  // namespace tenon::distributed
