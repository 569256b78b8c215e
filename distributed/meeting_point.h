// Where the threads of loopback ranks meet, exchange pointers and learn that one of them fails.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distributed/communicator.h"

namespace tenon::distributed {

class MeetingPoint {
 public:
  // What a rank brings, read and written by whoever comes last.
  struct Offer {
    const void* in = nullptr;
    void* out = nullptr;
    std::shared_ptr<MeetingPoint> child;  // of split
  };
  using Offers = std::vector<Offer*>;  // by rank, or of the sender and the receiver

  MeetingPoint(int size, std::chrono::milliseconds deadline);

  // Waits until every rank has brought the same call. The last one does `work` for all, after which
  // all go on: nobody's memory is touched before its call or after it.
  void meet(int rank, const CollectiveCall& call, Offer& offer,
            const std::function<void(const Offers&)>& work);
  // The same for two: who sends calls it with its rank as `from`, who receives with it as `to`.
  // The data is copied as the call says.
  void pass(int from, int to, bool sends, const CollectiveCall& call, Offer& offer);

  // Ends all waits and all later calls with this; the first one stays.
  void fail(const std::string& why);
  // A rank tells what it does, until it leaves. `progress` is called by other threads.
  void enter(int rank, std::function<std::string()> progress);
  void leave(int rank);

 private:
  struct Meeting;
  struct Party;
  void come_together(const Party& party, const CollectiveCall& call, Offer& offer,
                     const std::function<void(const Offers&)>& work);
  std::shared_ptr<Meeting> join(const Party& party, const CollectiveCall& call, Offer& offer);
  void wait(std::unique_lock<std::mutex>& lock, const Party& party, Meeting& meeting,
            const CollectiveCall& call);
  void fail_locked(const std::string& why);
  std::string progress_text(int rank) const;

  const int size_;
  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Of all ranks under {-1, -1}, of two under their numbers.
  std::map<std::pair<int, int>, std::shared_ptr<Meeting>> open_;
  struct Member {
    std::function<std::string()> progress;  // empty: it has called nothing yet
    bool has_left = false;
    std::string last_words;  // what it did before it left
  };
  std::vector<Member> members_;  // by rank
  std::string failure_;
};

}  // namespace tenon::distributed
