// Pieces of messages that all engines use.
#pragma once

#include <chrono>
#include <span>
#include <string>

namespace tenon::distributed {

std::string ranks_text(std::span<const int> ranks);     // "rank 1", "ranks 1, 2 and 5"
std::string time_text(std::chrono::milliseconds time);  // "60 s", "250 ms"

}  // namespace tenon::distributed
