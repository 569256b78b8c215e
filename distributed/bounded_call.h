// A call into a library that may never come back.
#pragma once

#include <chrono>
#include <functional>

namespace tenon::distributed {

// Runs `work` on a thread of its own and waits for it this long. False: it is still under way, and
// whatever it needs it must hold itself; it ends when it ends, and this library stays in memory for
// it.
bool call_within(std::chrono::milliseconds bound, std::function<void()> work) noexcept;

}  // namespace tenon::distributed
