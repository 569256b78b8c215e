#include "distributed/shared_memory/connect.h"

#include <fmt/format.h>

#include <algorithm>

#include "distributed/communicator.h"
#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Connecting {
 public:
  Connecting(const KeyValues& store, const SegmentMembers& members, milliseconds deadline)
      : store_(store), members_(members), deadline_(deadline), end_(Clock::now() + deadline) {}

  void tell(const char* what, const std::string& value) const { store_.set(key(what), value); }

  std::string told_by(int rank, const char* what) const {
    const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::now());
    try {
      return store_.get(members_.store_ranks[rank], key(what), std::max(milliseconds(1), left));
    } catch (const std::exception& error) {
      throw CollectiveError(fmt::format("connecting {} ranks: rank {} did not arrive within {}: {}",
                                        members_.store_ranks.size(), rank, time_text(deadline_),
                                        error.what()));
    }
  }

 private:
  std::string key(const char* what) const { return fmt::format("{}/{}", members_.key, what); }

  const KeyValues& store_;
  const SegmentMembers& members_;
  const milliseconds deadline_;
  const Clock::time_point end_;
};

// What this rank has to say of it: empty, or why it has none.
std::string open_segment(const Connecting& ranks, int rank, size_t bytes, SharedSegment& opened) {
  Support here = Support::yes();
  if (rank == 0) {
    here = SharedSegment::make(bytes, opened);
    ranks.tell("segment", here ? opened.address() : "");
  } else {
    const std::string address = ranks.told_by(0, "segment");
    if (address.empty()) return "";  // rank 0 says why
    here = SharedSegment::open(address, bytes, opened);
  }
  if (here) here = opened.enter(rank);
  return here.reason;
}

}  // namespace

Support connect_segment(const KeyValues& store, const SegmentMembers& members, size_t bytes,
                        milliseconds deadline, SharedSegment& connected) {
  const Connecting ranks(store, members, deadline);
  SharedSegment opened;
  ranks.tell("opened", open_segment(ranks, members.rank, bytes, opened));
  for (int rank = 0; rank < static_cast<int>(members.store_ranks.size()); ++rank) {
    if (const std::string why = ranks.told_by(rank, "opened"); !why.empty()) {
      return Support::no(fmt::format("rank {} cannot {} memory that all ranks share: {}", rank,
                                     rank == 0 ? "make" : "open", why));
    }
  }
  connected = std::move(opened);
  return Support::yes();
}

}  // namespace tenon::distributed
