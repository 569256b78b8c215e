// Places temporary buffers into one arena: buffers that live at the same time never overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tenon::kernels {

inline constexpr int64_t kArenaAlignment = 64;

// A buffer is live from step `first` up to and including step `last`.
struct Lifetime {
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per buffer, multiples of kArenaAlignment
  int64_t bytes = 0;             // size of the arena
};

MemoryPlan plan_memory(std::span<const Lifetime> buffers);

}  // namespace tenon::kernels
