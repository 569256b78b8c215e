// Ranks in messages.
#pragma once

#include <span>
#include <string>

namespace tenon::distributed {

std::string rank_list(std::span<const int> ranks);  // "rank 2", "ranks 0, 1 and 3"

}  // namespace tenon::distributed
