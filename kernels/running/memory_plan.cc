#include "kernels/running/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/checked.h"

namespace tenon::kernels {
namespace {

struct Placed {
  int64_t begin = 0, end = 0;
};

bool live_together(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

int64_t align_up(int64_t bytes) {
  return checked_add(bytes, kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// The start of the tightest hole between `neighbours` (sorted by begin) that holds `bytes`, or the
// end of the last one.
int64_t best_fit(const std::vector<Placed>& neighbours, int64_t bytes) {
  int64_t best = -1, best_size = std::numeric_limits<int64_t>::max();
  int64_t free_from = 0;
  for (const Placed& neighbour : neighbours) {
    const int64_t hole = neighbour.begin - free_from;
    if (hole >= bytes && hole < best_size) {
      best = free_from;
      best_size = hole;
    }
    free_from = std::max(free_from, neighbour.end);
  }
  return best >= 0 ? best : free_from;
}

}  // namespace

MemoryPlan plan_memory(std::span<const Lifetime> buffers) {
  // Large buffers first: they are the hardest to fit into holes.
  std::vector<size_t> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<size_t> placed;
  for (size_t current : by_size) {
    const int64_t bytes = align_up(buffers[current].bytes);
    if (bytes == 0) continue;
    std::vector<Placed> neighbours;
    for (size_t other : placed) {
      if (!live_together(buffers[current], buffers[other])) continue;
      neighbours.push_back(
          {plan.offsets[other], plan.offsets[other] + align_up(buffers[other].bytes)});
    }
    std::sort(neighbours.begin(), neighbours.end(),
              [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    plan.offsets[current] = best_fit(neighbours, bytes);
    plan.bytes = std::max(plan.bytes, checked_add(plan.offsets[current], bytes));
    placed.push_back(current);
  }
  return plan;
}

}  // namespace tenon::kernels
