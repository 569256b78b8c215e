// Where the ranks of a job meet before they have a communicator: small values that all can read,
// and the news that one of them is gone. Rank 0 serves it in a thread of its own (store_server.h),
// every rank, 0 too, keeps one connection to it for as long as the object lives.
//
// What goes wrong with a peer is a CollectiveError that names the ranks. After the first loss or
// reported failure the group has failed: what waits and whatever is asked later throws it. A new
// group can then be made in the same process; any number may be alive at a time, when all ranks
// make them in the same order.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/rendezvous/launch_place.h"

namespace tenon::distributed {

struct Fingerprint;
class StoreMember;

class Store {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Settings {
    Milliseconds deadline{60'000};  // of joining, and of waits that name no other
    Milliseconds silence{30'000};   // a rank that is not heard of for so long is lost
    // A rank is lost, or reported a failure; once per rank, from join on, in a thread of the store,
    // which it must not destroy. The reason is a sentence that names the rank.
    std::function<void(int rank, const std::string& reason)> on_lost;
    // How far this rank is ("is in all_reduce #3"), for the message that all get when the group
    // fails. Called in a thread of the store and in that of report_failure.
    std::function<std::string()> progress{};
  };

  // Returns when all ranks are in.
  static std::unique_ptr<Store> join(const LaunchPlace& place, Settings settings);
  // Leaves: ranks that wait for this one, now or later, get an error; who has its values keeps
  // them. Leave with an error by report_failure.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  int rank() const;
  int size() const;
  // "pid 12 on host", for messages.
  std::string process(int rank) const;

  // Values are at most 1 MiB, keys 1000 bytes. set replaces; get waits for the value of `rank`.
  void set(std::string_view key, std::string_view value);
  std::string get(int rank, std::string_view key);
  std::string get(int rank, std::string_view key, Milliseconds deadline);

  // Every rank's value, in their order. All ranks call it with the same name; a name may be used
  // again. Past the deadline the group has failed on all ranks.
  std::vector<std::string> all_gather(std::string_view name, std::string_view value);
  std::vector<std::string> all_gather(std::string_view name, std::string_view value,
                                      Milliseconds deadline);
  void barrier(std::string_view name) { (void)all_gather(name, {}); }
  void barrier(std::string_view name, Milliseconds deadline) {
    (void)all_gather(name, {}, deadline);
  }

  // What this rank is about to do, where all must do the same under the same occasion, each at its
  // time. Nobody waits: the group fails where two differ.
  void announce(const std::string& occasion, const Fingerprint& mine);

  // This rank cannot go on: all others hear it.
  void report_failure(const std::string& reason);
  // What rank 0 tells all ranks of a failure, with how far each of them came; waits so long for it.
  std::optional<std::string> verdict(Milliseconds wait) const;
  // Why the group has failed; the same on all ranks, but for several failures at once.
  std::optional<std::string> failure() const;

 private:
  explicit Store(std::unique_ptr<StoreMember> member);
  std::unique_ptr<StoreMember> member_;
};

}  // namespace tenon::distributed
