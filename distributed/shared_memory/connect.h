// How ranks come to a segment that all of them have, or agree that there is none.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/support.h"
#include "distributed/key_values.h"
#include "distributed/shared_memory/segment.h"

namespace tenon::distributed {

// Who is in it, by their ranks in the store, and which of them this is.
struct SegmentMembers {
  std::vector<int> store_ranks;
  int rank;
  std::string key;  // under which they meet, and nobody else ever did
};

// All members call it, and all get the same answer: where one of them cannot open the segment, none
// of them has it. A CollectiveError where one does not come.
Support connect_segment(const KeyValues& store, const SegmentMembers& members, size_t bytes,
                        std::chrono::milliseconds deadline, SharedSegment& connected);

}  // namespace tenon::distributed
