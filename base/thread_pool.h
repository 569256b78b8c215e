// Threads for compiling and packing. Kernels never run here: they use the runtime's own pool.
#pragma once

#include <cstdint>
#include <functional>

namespace tenon {

// Runs fn(0) … fn(count-1) on up to `threads` threads (0: one per core) that are joined before
// returning. The first exception is rethrown in the caller.
void parallel_for_each(int64_t count, const std::function<void(int64_t)>& fn, int threads = 0);

}  // namespace tenon
