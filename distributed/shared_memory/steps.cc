#include "distributed/shared_memory/steps.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Of a message between two, which is passed in pieces.
constexpr size_t kPieceBytes = 16 * 1024;
// How often who sleeps looks whether it is waited for in vain.
constexpr milliseconds kLook{5};
// How long ranks that do not call the same wait for somebody who knows why: a job compares what its
// ranks are about to do, and aborts them with what differs.
constexpr milliseconds kForCause{1000};

// Where every rank can have a core, who sleeps only gives it away, and may wake up on that of the
// rank it waits for. Where there are more ranks than cores, that rank may need this one;
// sched_yield is no middle way, it comes back some milliseconds later.
constexpr microseconds kSpinOnOwnCore{1000}, kSpinOnSharedCore{2};

cpu_set_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  (void)::sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

size_t rounded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

// One of these, of each rank, is at the front of the segment.
struct SharedSteps::Member {
  cpu_set_t cores;        // that it may run on; written before the first step
  SharedCounter arrived;  // the step that it is in
  CallCard cards[2];      // of this step and the one before
  std::atomic<int> core;  // that it was on when it arrived
  alignas(kCacheLine) std::atomic<uint32_t> ending;
  char why[1024];  // it failed; written before `ending`, once
};

std::string SharedSteps::reason(const Member& failed) {
  return {failed.why, ::strnlen(failed.why, sizeof failed.why)};
}

struct SharedSteps::Channel {
  SharedCounter sent, taken;  // pieces
  CallCard card;
  alignas(kCacheLine) char bytes[2][kPieceBytes];
};

size_t SharedSteps::channels_at(int size) { return rounded(sizeof(Member) * size); }
size_t SharedSteps::bytes_at(int size) {
  return channels_at(size) + rounded(sizeof(Channel) * size * size);
}
size_t SharedSteps::segment_bytes(int size) { return bytes_at(size) + 2 * kStepBytes * size; }

SharedSteps::Member& SharedSteps::member(int rank) const {
  return reinterpret_cast<Member*>(segment_.memory())[rank];
}

SharedSteps::Channel& SharedSteps::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(segment_.memory() + channels_at(size_))[from * size_ + to];
}

char* SharedSteps::bytes(int rank, uint32_t step) const {
  return segment_.memory() + bytes_at(size_) + kStepBytes * (2 * rank + step % 2);
}

SharedSteps::SharedSteps(SharedSegment segment, int rank, int size, milliseconds deadline)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      deadline_(deadline),
      process_(::getpid()) {
  for (int other = 0; other < size; ++other) {
    if (other != rank) others_.push_back({other, &member(other).arrived});
  }
  member(rank).cores = own_cores();
}

// A forked child has a copy of the object, and is no rank.
SharedSteps::~SharedSteps() {
  if (::getpid() == process_) end(kLeft, "");
}

void SharedSteps::meet(const CollectiveCall& call) {
  ++step_;
  Member& self = member(rank_);
  CallCard& card = self.cards[step_ % 2];
  card = CallCard::of(call);
  self.core.store(::sched_getcpu(), std::memory_order_relaxed);
  self.arrived.set(step_);
  wait(call, others_, step_);
  for (const Awaited& one : others_) {
    const CallCard& theirs = member(one.rank).cards[step_ % 2];
    expect_same(card.is_same_call(theirs), call, one.rank, theirs);
  }
  expect_nobody_failed(call);
  if (step_ == 1) count_cores();
}

void SharedSteps::count_cores() {
  cpu_set_t all = member(rank_).cores;
  for (const Awaited& one : others_) CPU_OR(&all, &all, &member(one.rank).cores);
  has_own_core_ = CPU_COUNT(&all) >= size_;
}

microseconds SharedSteps::spin_for(int rank) const {
  if (!has_own_core_) return kSpinOnSharedCore;
  const int theirs = member(rank).core.load(std::memory_order_relaxed);
  return theirs != ::sched_getcpu() || leave_core() ? kSpinOnOwnCore : kSpinOnSharedCore;
}

// Two ranks that wake each other on one core would stay there: never do both want to run, so nobody
// moves one of them.
bool SharedSteps::leave_core() const {
  const cpu_set_t mine = own_cores();
  cpu_set_t free = mine;
  for (int rank = 0; rank < size_; ++rank) {
    CPU_CLR(member(rank).core.load(std::memory_order_relaxed), &free);
  }
  if (CPU_COUNT(&free) == 0 || ::sched_setaffinity(0, sizeof free, &free) != 0) return false;
  (void)::sched_setaffinity(0, sizeof mine, &mine);
  return true;
}

void SharedSteps::send(const CollectiveCall& call, const void* in, size_t bytes, int to) {
  Channel& way = channel(rank_, to);
  const Awaited receiver{to, &way.taken};
  uint32_t piece = way.sent.get();
  way.card = CallCard::of(call);  // all pieces of the last message have been taken
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    ++piece;
    wait(call, {&receiver, 1}, piece - 2);
    std::memcpy(way.bytes[piece % 2], static_cast<const char*>(in) + begin,
                std::min(kPieceBytes, bytes - begin));
    way.sent.set(piece);
  }
  wait(call, {&receiver, 1}, piece);
}

void SharedSteps::receive(const CollectiveCall& call, void* out, size_t bytes, int from) {
  Channel& way = channel(from, rank_);
  const Awaited sender{from, &way.sent};
  uint32_t piece = way.taken.get();
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    wait(call, {&sender, 1}, ++piece);
    const CallCard theirs = way.card;
    expect_same(CallCard::of(call).is_same_message(theirs), call, from, theirs);
    std::memcpy(static_cast<char*>(out) + begin, way.bytes[piece % 2],
                std::min(kPieceBytes, bytes - begin));
    way.taken.set(piece);
  }
}

void SharedSteps::wait(const CollectiveCall& call, std::span<const Awaited> awaited,
                       uint32_t value) {
  const bool are_here = std::ranges::all_of(awaited, [&](const Awaited& one) {
    return one.counter->reached(value) || one.counter->spin_until(value, spin_for(one.rank));
  });
  if (!are_here) wait_long(call, awaited, value);
}

void SharedSteps::wait_long(const CollectiveCall& call, std::span<const Awaited> awaited,
                            uint32_t value) {
  const auto end = Clock::now() + deadline_;
  while (true) {
    std::vector<int> missing;
    SharedCounter* first = nullptr;
    for (const Awaited& one : awaited) {
      if (one.counter->reached(value)) continue;
      if (const std::string why = gone(one, value); !why.empty()) {
        give_up(fmt::format("{}: rank {} is gone: {}", call.text(), one.rank, why));
      }
      if (first == nullptr) first = one.counter;
      missing.push_back(one.rank);
    }
    if (first == nullptr) return;
    expect_nobody_failed(call);
    expect_not_aborted(call);
    if (Clock::now() >= end) {
      give_up(fmt::format("{}: {} did not arrive within {}", call.text(), ranks_text(missing),
                          time_text(deadline_)));
    }
    (void)first->sleep_until(value, kLook);
  }
}

std::string SharedSteps::gone(const Awaited& one, uint32_t value) const {
  const Member& other = member(one.rank);
  std::string why;
  switch (other.ending.load(std::memory_order_acquire)) {
    case kNone:
      if (!segment_.is_there(one.rank)) why = "its process has ended";
      break;
    case kLeft:
      why = "the communicator was destroyed";
      break;
    default:
      why = reason(other);
  }
  // It may have come and left since it was looked for.
  return one.counter->reached(value) ? "" : why;
}

// Who failed may have brought what it had to, but not read what others did.
void SharedSteps::expect_nobody_failed(const CollectiveCall& call) {
  for (const Awaited& one : others_) {
    const Member& other = member(one.rank);
    if (other.ending.load(std::memory_order_acquire) != kFailed) continue;
    give_up(fmt::format("{}: rank {} is gone: {}", call.text(), one.rank, reason(other)));
  }
}

void SharedSteps::fail(const std::string& why) { end(kFailed, why); }

void SharedSteps::end(Ending ending, const std::string& why) {
  const std::lock_guard lock(ending_);
  Member& self = member(rank_);
  if (self.ending.load(std::memory_order_relaxed) != kNone) return;
  std::memcpy(self.why, why.data(), std::min(why.size(), sizeof self.why - 1));
  self.ending.store(ending, std::memory_order_release);
  self.arrived.wake();
}

void SharedSteps::give_up(const std::string& why) {
  end(kFailed, why);
  throw CollectiveError(why);
}

void SharedSteps::expect_same(bool same, const CollectiveCall& call, int rank,
                              const CallCard& theirs) {
  if (same) return;
  const auto end = Clock::now() + std::min(kForCause, deadline_);
  while (Clock::now() < end) {
    expect_not_aborted(call);
    std::this_thread::sleep_for(kLook);
  }
  give_up(fmt::format("{}: rank {} calls {}: ranks do not call the same", call.text(), rank,
                      theirs.call().text()));
}

void SharedSteps::expect_not_aborted(const CollectiveCall& call) const {
  if (member(rank_).ending.load(std::memory_order_acquire) == kNone) return;
  throw CollectiveError(fmt::format("{}: aborted", call.text()));
}

}  // namespace tenon::distributed
