#include "distributed/meeting_point.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

constexpr std::pair<int, int> kAllRanks{-1, -1};

}  // namespace

// Who is to come together, and which of them this is.
struct MeetingPoint::Party {
  std::pair<int, int> key;
  std::vector<int> ranks;
  size_t place;

  bool agree(const CollectiveCall& a, const CollectiveCall& b) const {
    if (key == kAllRanks) return a == b;
    return a.number == b.number && a.elements == b.elements && a.dtype == b.dtype;
  }
};

struct MeetingPoint::Meeting {
  explicit Meeting(size_t size) : offers(size), calls(size) {}

  Offers offers;  // null: has not come
  std::vector<CollectiveCall> calls;
  size_t come = 0;
  bool done = false;
  std::string failure;  // of the work

  bool complete() const { return come == offers.size(); }
};

MeetingPoint::MeetingPoint(int size, std::chrono::milliseconds deadline)
    : size_(size), deadline_(deadline), members_(size) {}

void MeetingPoint::meet(int rank, const CollectiveCall& call, Offer& offer,
                        const std::function<void(const Offers&)>& work) {
  Party party{kAllRanks, std::vector<int>(size_), static_cast<size_t>(rank)};
  std::iota(party.ranks.begin(), party.ranks.end(), 0);
  come_together(party, call, offer, work);
}

void MeetingPoint::pass(int from, int to, bool sends, const CollectiveCall& call, Offer& offer) {
  const Party party{{from, to}, {from, to}, sends ? size_t{0} : size_t{1}};
  come_together(party, call, offer, [&](const Offers& offers) {
    std::memcpy(offers[1]->out, offers[0]->in, storage_bytes(call.dtype, call.elements));
  });
}

void MeetingPoint::come_together(const Party& party, const CollectiveCall& call, Offer& offer,
                                 const std::function<void(const Offers&)>& work) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Meeting> meeting = join(party, call, offer);
  if (!meeting->complete()) {
    wait(lock, party, *meeting, call);
    return;
  }
  open_.erase(party.key);
  lock.unlock();
  std::string failure;
  try {
    work(meeting->offers);
  } catch (const std::exception& error) {
    failure = fmt::format("{}: {}", call.text(), error.what());
  }
  lock.lock();
  if (!failure.empty()) fail_locked(failure);
  meeting->failure = failure;
  meeting->done = true;
  changed_.notify_all();
  if (!failure.empty()) throw CollectiveError(failure);
}

// With the lock held, as the next ones.
std::shared_ptr<MeetingPoint::Meeting> MeetingPoint::join(const Party& party,
                                                          const CollectiveCall& call,
                                                          Offer& offer) {
  if (!failure_.empty()) throw CollectiveError(failure_);
  std::shared_ptr<Meeting>& meeting = open_[party.key];
  if (meeting == nullptr) meeting = std::make_shared<Meeting>(party.ranks.size());
  for (size_t other = 0; other < party.ranks.size(); ++other) {
    if (meeting->offers[other] == nullptr || party.agree(meeting->calls[other], call)) continue;
    fail_locked(fmt::format("ranks do not call the same: rank {} calls {}, rank {} calls {}",
                            party.ranks[other], meeting->calls[other].text(),
                            party.ranks[party.place], call.text()));
    throw CollectiveError(failure_);
  }
  meeting->offers[party.place] = &offer;
  meeting->calls[party.place] = call;
  ++meeting->come;
  return meeting;
}

void MeetingPoint::wait(std::unique_lock<std::mutex>& lock, const Party& party, Meeting& meeting,
                        const CollectiveCall& call) {
  const auto until = std::chrono::steady_clock::now() + deadline_;
  while (!meeting.done) {
    if (meeting.complete()) {  // memory of ours is in use, but not for long
      changed_.wait(lock);
      continue;
    }
    if (!failure_.empty()) throw CollectiveError(failure_);
    std::vector<int> missing, gone;
    for (size_t place = 0; place < party.ranks.size(); ++place) {
      if (meeting.offers[place] != nullptr) continue;
      missing.push_back(party.ranks[place]);
      if (members_[missing.back()].has_left) gone.push_back(missing.back());
    }
    const bool late = std::chrono::steady_clock::now() >= until;
    if (gone.empty() && !late) {
      changed_.wait_until(lock, until);
      continue;
    }
    std::vector<std::string> known;
    for (const int rank : gone.empty() ? missing : gone) {
      known.push_back(fmt::format("rank {} {}", rank, progress_text(rank)));
    }
    const std::string what =
        gone.empty()
            ? fmt::format("{} did not arrive within {}", ranks_text(missing), time_text(deadline_))
            : fmt::format("{} left: the communicator was destroyed", ranks_text(gone));
    fail_locked(fmt::format("{}: {} ({})", call.text(), what, fmt::join(known, "; ")));
  }
  if (!meeting.failure.empty()) throw CollectiveError(meeting.failure);
}

std::string MeetingPoint::progress_text(int rank) const {
  const Member& member = members_[rank];
  if (member.has_left) return member.last_words;
  return member.progress ? member.progress() : Communicator::Progress().text();
}

void MeetingPoint::fail_locked(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  changed_.notify_all();
}

void MeetingPoint::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  fail_locked(why);
}

void MeetingPoint::enter(int rank, std::function<std::string()> progress) {
  const std::lock_guard lock(mutex_);
  members_[rank].progress = std::move(progress);
}

void MeetingPoint::leave(int rank) {
  const std::lock_guard lock(mutex_);
  Member& member = members_[rank];
  member.last_words = progress_text(rank);
  member.has_left = true;
  member.progress = nullptr;
  changed_.notify_all();
}

}  // namespace tenon::distributed
