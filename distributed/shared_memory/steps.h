// How ranks pass bytes through a segment.
//
// All of them go through numbered steps together. In a step each rank fills memory of its own, says
// that it is there and waits for all others; then it reads what they brought. Its memory of a step
// is filled anew in the step after the next one, which nobody comes to before all have read it: two
// halves that take turns, and one wait in a step.
//
// What goes wrong is a CollectiveError that names the call and the ranks. The others hear of it:
// every rank says in the segment how it ended, and one that could not is missed by the kernel.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/shared_memory/call_card.h"
#include "distributed/shared_memory/counter.h"
#include "distributed/shared_memory/segment.h"

namespace tenon::distributed {

class SharedSteps {
 public:
  // That a rank can bring to a step.
  static constexpr size_t kStepBytes = 256 * 1024;
  // Of the segment for so many ranks.
  static size_t segment_bytes(int size);

  // All ranks are in the segment.
  SharedSteps(SharedSegment segment, int rank, int size, std::chrono::milliseconds deadline);
  ~SharedSteps();
  SharedSteps(const SharedSteps&) = delete;
  SharedSteps& operator=(const SharedSteps&) = delete;

  // This rank's memory of the next step.
  char* mine() const { return bytes(rank_, step_ + 1); }
  // Comes back when all ranks are in the step, with the same call.
  void meet(const CollectiveCall& call);
  // What a rank brought to this step.
  const char* of(int rank) const { return bytes(rank, step_); }

  // Between two ranks; both come back when all has been read.
  void send(const CollectiveCall& call, const void* in, size_t bytes, int to);
  void receive(const CollectiveCall& call, void* out, size_t bytes, int from);

  // From any thread: ends the waits of this rank, and what others wait for from it.
  void fail(const std::string& why);

 private:
  struct Member;
  struct Channel;
  struct Awaited {
    int rank;
    SharedCounter* counter;
  };
  enum Ending : uint32_t { kNone, kLeft, kFailed };

  static size_t channels_at(int size);
  static size_t bytes_at(int size);
  Member& member(int rank) const;
  Channel& channel(int from, int to) const;
  char* bytes(int rank, uint32_t step) const;

  void count_cores();
  std::chrono::microseconds spin_for(int rank) const;
  bool leave_core() const;
  void wait(const CollectiveCall& call, std::span<const Awaited> awaited, uint32_t value);
  void wait_long(const CollectiveCall& call, std::span<const Awaited> awaited, uint32_t value);
  // Why this one will not come; empty: it may still.
  std::string gone(const Awaited& one, uint32_t value) const;
  static std::string reason(const Member& failed);
  void expect_nobody_failed(const CollectiveCall& call);
  void expect_not_aborted(const CollectiveCall& call) const;
  void end(Ending ending, const std::string& why);
  [[noreturn]] void give_up(const std::string& why);
  void expect_same(bool same, const CollectiveCall& call, int rank, const CallCard& theirs);

  const SharedSegment segment_;
  const int rank_, size_;
  const std::chrono::milliseconds deadline_;
  const int process_;
  uint32_t step_ = 0;
  bool has_own_core_ = false;  // and so has every other rank
  std::vector<Awaited> others_;
  std::mutex ending_;  // who says how this rank ended
};

}  // namespace tenon::distributed
