// One rank's side of the store: its connection, a thread that listens to it, and a copy of what all
// ranks have posted.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/launch_place.h"
#include "distributed/rendezvous/store.h"
#include "distributed/rendezvous/store_message.h"
#include "distributed/rendezvous/store_server.h"

namespace tenon::distributed {

class StoreMember {
 public:
  using Milliseconds = Store::Milliseconds;

  // Connects; wait_for_all waits for the others.
  StoreMember(const LaunchPlace& place, Store::Settings settings);
  ~StoreMember();

  void wait_for_all();
  // Under the next number of `name`, which all ranks count alike.
  std::string next_round(std::string_view name);
  void post(const std::string& key, std::string_view value);
  // A wait for values of ranks under a key, as messages tell it.
  struct Wanted {
    std::vector<int> ranks;
    std::string key;
    std::string what;  // "arrive at 'start'"
    Milliseconds deadline;
    bool by_all = false;  // all ranks wait for it: taken once, and a failure of all when it is late
  };
  std::vector<std::string> wait_for(const Wanted& wanted);
  void announce(const std::string& key, std::string word);
  void report(const std::string& reason);
  std::optional<std::string> failure() const;
  std::optional<std::string> verdict(Milliseconds wait) const;
  std::string process(int rank) const;
  // A forked child has the object, but neither its thread nor a connection of its own.
  bool is_forked_copy() const;

  const int rank, size;
  const Store::Settings settings;

 private:
  struct Rank {
    std::string process;  // empty: it has not joined
    bool left = false, lost = false;
  };

  void run();
  void wait_for_news(Clock::time_point until);
  bool read_news();
  void take(StoreMessage message);
  void lose(int rank, const std::string& reason);
  void tell_losses(std::unique_lock<std::mutex>& lock);
  void say_how_far(std::unique_lock<std::mutex>& lock);
  void say_goodbye();
  void send(const StoreMessage& message);
  std::string progress() const;
  void report_locked(const std::string& reason, const std::string& how_far);
  [[noreturn]] void give_up(const std::string& error);
  void check_not_forked() const;

  std::string name(int rank) const;  // "rank 2 (pid 12 on host)"
  std::string names(const std::vector<int>& ranks) const;
  std::string too_late(const std::vector<int>& missing, const std::string& what,
                       Milliseconds deadline) const;
  std::optional<std::string> hopeless(const std::vector<int>& missing,
                                      const std::string& what) const;

  const Milliseconds beat_;
  const Clock::time_point join_limit_;
  const pid_t pid_;
  std::unique_ptr<StoreServer> server_;  // of rank 0
  Waker waker_;

  mutable std::mutex mutex_;
  mutable std::condition_variable news_;
  // Under the mutex, from here.
  std::optional<FrameChannel> channel_;  // none where there are no others
  std::vector<Rank> ranks_;
  std::map<std::pair<int, std::string>, std::string> values_;
  std::map<std::string, uint64_t, std::less<>> rounds_;
  std::optional<std::string> failure_, verdict_;     // verdict_: the server's first word of it
  std::vector<std::pair<int, std::string>> untold_;  // losses that on_lost has not heard of
  std::string note_;  // the server's: where it listens, whom it turned away
  Clock::time_point heard_;
  bool leaving_ = false, asked_ = false;

  std::thread thread_;
};

}  // namespace tenon::distributed
