// The way into a group: a connection to rank 0's store on which both sides have shown the token.
#pragma once

#include <chrono>

#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/launch_place.h"

namespace tenon::distributed {

// Tries until `limit`, which was `deadline` away when joining began; a CollectiveError says what
// became of the last tries.
FrameChannel connect_to_store(const LaunchPlace& place, Clock::time_point limit,
                              std::chrono::milliseconds deadline,
                              std::chrono::milliseconds silence);

}  // namespace tenon::distributed
