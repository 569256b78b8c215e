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
constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{200};

// The greeting, from the side of one who comes; the error where it fails.
std::string greet(FrameChannel& channel, const JobToken& token, Clock::time_point limit,
                  bool& wrong_token) {
  const auto nothing_came = [&channel] {
    return channel.ended().empty() ? std::string("it says nothing") : channel.ended();
  };
  const std::optional<std::string> challenge = wait_for_frame(channel, limit);
  if (!challenge) return nothing_came();
  const std::optional<Answer> reply = answer(*challenge, token);
  if (!reply) return "it is something else, or another version of Tenon";
  channel.push(reply->frame);
  const std::optional<std::string> verdict = wait_for_frame(channel, limit);
  if (!verdict) return nothing_came();
  switch (read_verdict(*verdict, *reply, token)) {
    case Welcome::kAccepted:
      return "";
    case Welcome::kWrongToken:
      wrong_token = true;
      return "it refused this rank's token";
    case Welcome::kUnknown:
      return "it does not know the job's token itself";
  }
  return "";
}

struct Round {
  std::optional<FrameChannel> channel;
  std::string errors;
  bool wrong_token = false;
};

// Every address of every port, once. The name of a host that is just coming up may not be known
// yet.
Round try_all(const LaunchPlace& place, Clock::time_point limit,
              std::chrono::milliseconds silence) try {
  Round round;
  for (const Endpoint& endpoint : resolve(place.host, place.ports)) {
    const auto patience = std::min(limit, Clock::now() + kPatience);
    OpenedSocket opened = connect_to(endpoint, patience);
    std::string error = opened.error;
    if (opened.socket) {
      tune_connection(opened.socket, silence);
      FrameChannel channel(std::move(opened.socket), kGreetingBytes);
      error = greet(channel, place.token, patience, round.wrong_token);
      if (error.empty()) {
        channel.set_longest(kLongestFrame);
        round.channel = std::move(channel);
        return round;
      }
    }
    round.errors +=
        fmt::format("{}{}: {}", round.errors.empty() ? "" : "; ", endpoint.text(), error);
  }
  return round;
} catch (const UserError& error) {
  return {.channel = std::nullopt, .errors = error.what()};
}

}  // namespace

FrameChannel connect_to_store(const LaunchPlace& place, Clock::time_point limit,
                              std::chrono::milliseconds deadline,
                              std::chrono::milliseconds silence) {
  auto pause = kFirstPause;
  while (true) {
    Round round = try_all(place, limit, silence);
    if (round.channel) return *std::move(round.channel);
    // Where several ports are tried, one of them may be another job's.
    if (round.wrong_token && place.ports.size() == 1) {
      throw CollectiveError(fmt::format(
          "rank {} has another job token than rank 0 ({}): collective_token, "
          "TENON_COLLECTIVE_TOKEN or the launcher's job differ, or another job listens there",
          place.rank, round.errors));
    }
    if (Clock::now() + pause >= limit) {
      throw CollectiveError(fmt::format(
          "rank 0 did not let rank {} in within {} ms; it is not running, elsewhere, or has its "
          "{} ranks already ({})",
          place.rank, deadline.count(), place.size, round.errors));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace tenon::distributed
