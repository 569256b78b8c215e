#include "distributed/rendezvous/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/rendezvous/greeting.h"
#include "distributed/rendezvous/store_message.h"

namespace tenon::distributed {
namespace {

// For one address: another one, or a later try, may do better.
constexpr std::chrono::milliseconds kPatience{2000};
// Of the first round, for a connection alone: where the door is flooded the kernel drops calls, and
// calls again by itself only after a second.
constexpr std::chrono::milliseconds kFirstPatience{250};
constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{200};

// What ranks must have in common before they can talk.
enum class Differs { kNothing, kToken, kVersion };

// What came of one address.
struct Try {
  std::string error{};  // empty: the channel is greeted
  Differs differs = Differs::kNothing;
};

constexpr const char* kStranger =
    "it passes what this rank says on to another port: a stranger stands between this rank and "
    "rank 0";

// The greeting, from the side of one who comes.
Try greet(FrameChannel& channel, const JobToken& token, uint16_t port, Clock::time_point limit) {
  const auto nothing_came = [&channel] {
    return Try{channel.ended().empty() ? "it says nothing" : channel.ended()};
  };
  const std::optional<std::string> challenge = wait_for_frame(channel, limit);
  if (!challenge) return nothing_came();
  const Answer reply = answer(*challenge, token, port);
  if (!reply.frame.empty()) channel.push(reply.frame);
  channel.flush();
  if (!reply.objection.empty()) {
    return {reply.objection, reply.other_version ? Differs::kVersion : Differs::kNothing};
  }
  const std::optional<std::string> verdict = wait_for_frame(channel, limit);
  if (!verdict) return nothing_came();
  switch (read_verdict(*verdict, reply.meeting)) {
    case Welcome::kAccepted:
      channel.sign_frames(client_keys(reply.meeting));
      return {};
    case Welcome::kWrongToken:
      return {"it refused this rank's token", Differs::kToken};
    case Welcome::kOtherPort:
      return {kStranger};
    case Welcome::kUnknown:
      return {"it does not know the job's token itself"};
  }
  return {};
}

struct Round {
  std::optional<FrameChannel> channel;
  std::string errors;
  Differs differs = Differs::kNothing;
};

// Every address of every port, once. The name of a host that is just coming up may not be known
// yet.
Round try_all(const LaunchPlace& place, Clock::time_point limit,
              std::chrono::milliseconds connecting, std::chrono::milliseconds silence) try {
  Round round;
  for (const Endpoint& endpoint : resolve(place.host, place.ports)) {
    OpenedSocket opened = connect_to(endpoint, std::min(limit, Clock::now() + connecting));
    Try tried{opened.error};
    if (opened.socket) {
      tune_connection(opened.socket, silence);
      FrameChannel channel(std::move(opened.socket), kGreetingBytes);
      const auto greeting = std::min(limit, Clock::now() + kPatience);
      tried = greet(channel, place.token, endpoint.port(), greeting);
      if (tried.error.empty()) {
        channel.set_longest(kLongestFrame);
        round.channel = std::move(channel);
        return round;
      }
    }
    if (tried.differs != Differs::kNothing) round.differs = tried.differs;
    round.errors +=
        fmt::format("{}{}: {}", round.errors.empty() ? "" : "; ", endpoint.text(), tried.error);
  }
  return round;
} catch (const UserError& error) {
  return {.channel = std::nullopt, .errors = error.what()};
}

// Of ranks that know each other by a file.
std::string hint_of(const LaunchPlace& place, Differs differs) {
  if (differs != Differs::kToken || !place.needs_user_secret) return "";
  return "; ranks in several containers or of several users have no secret in common and need a "
         "collective_token";
}

// Trying again does not help.
void require_common(const LaunchPlace& place, Differs differs, const std::string& errors) {
  if (differs == Differs::kVersion) {
    throw CollectiveError(fmt::format("rank {} cannot join rank 0 ({})", place.rank, errors));
  }
  if (differs == Differs::kToken) {
    throw CollectiveError(
        fmt::format("rank {} has another job token than rank 0 ({}): collective_token, "
                    "TENON_COLLECTIVE_TOKEN or the launcher's job differ, or another job listens "
                    "there{}",
                    place.rank, errors, hint_of(place, differs)));
  }
}

}  // namespace

FrameChannel connect_to_store(const LaunchPlace& place, Clock::time_point limit,
                              std::chrono::milliseconds deadline,
                              std::chrono::milliseconds silence) {
  auto pause = kFirstPause;
  for (auto connecting = kFirstPatience;; connecting = std::min(2 * connecting, kPatience)) {
    Round round = try_all(place, limit, connecting, silence);
    if (round.channel) return *std::move(round.channel);
    // Where several ports are tried, one of them may be another job's.
    if (place.ports.size() == 1) require_common(place, round.differs, round.errors);
    if (Clock::now() + pause >= limit) {
      throw CollectiveError(fmt::format(
          "rank 0 did not let rank {} in within {} ms; it is not running, elsewhere, or has its "
          "{} ranks already ({}){}",
          place.rank, deadline.count(), place.size, round.errors, hint_of(place, round.differs)));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace tenon::distributed
