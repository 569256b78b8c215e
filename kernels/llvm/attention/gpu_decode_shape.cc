#include "kernels/llvm/attention/gpu_decode_shape.h"

#include <algorithm>

#include <fmt/format.h>

namespace tenon::kernels {
namespace {

constexpr int64_t kReserved = 1 << 10;      // of shared memory, for each block
constexpr int64_t kSmallBuffers = 4 << 10;  // barriers, maxima and sums, what changes threads

// Whole rows in one box keep the memory's order where they can.
int box_columns(const AttentionProblem& problem) {
  return problem.depth % 128 == 0 && problem.value_depth % 128 == 0 ? 128 : 64;
}

int boxes(int64_t depth, int columns) { return static_cast<int>((depth + columns - 1) / columns); }

}  // namespace

int DecodeShape::merged_boxes() const {
  constexpr int kMergedBytes = 16 << 10;
  return std::clamp(kMergedBytes / (warps * kept_rows * columns * 4), 1, value_boxes);
}

int64_t DecodeShape::shared_bytes() const {
  const int64_t slot = int64_t{keys()} * columns * 2 * (key_boxes + value_boxes);
  const int64_t queries = int64_t{kRows} * columns * 2 * key_boxes;
  return slots * slot + queries + merged_elements() * 4 + kSmallBuffers;
}

Dim DecodeShape::splits(const AttentionProblem& problem, int multiprocessors) const {
  const Dim heads = max(Dim(1), problem.batch * problem.attention.kv_heads);
  const Dim places = floor_div(Dim(int64_t{multiprocessors} * blocks), heads);
  return max(Dim(1), min(places, ceil_div(problem.all_keys, Dim(keys()))));
}

std::string DecodeShape::text() const {
  return fmt::format("{} warps, {} slots of {} keys, {} blocks", warps, slots, keys(), blocks);
}

std::vector<DecodeShape> rank_decode_shapes(const AttentionProblem& problem, int64_t queries,
                                            const codegen::GpuTarget& gpu) {
  // As measured; the second leaves room for a block of the next launch.
  constexpr DecodeShape kShapes[] = {
      {4, 32, 3, 1}, {4, 16, 3, 1}, {4, 16, 5, 1}, {8, 16, 3, 1},
      {4, 16, 3, 2}, {8, 16, 2, 1}, {4, 16, 2, 3}, {4, 16, 2, 1},
  };
  std::vector<DecodeShape> fitting;
  for (DecodeShape shape : kShapes) {
    shape.columns = box_columns(problem);
    shape.key_boxes = boxes(problem.depth, shape.columns);
    shape.value_boxes = boxes(problem.value_depth, shape.columns);
    shape.kept_rows = static_cast<int>(problem.group() * queries);
    const bool fits =
        shape.blocks * (shape.shared_bytes() + kReserved) <= gpu.shared_bytes + kReserved;
    if (fits && shape.threads() <= gpu.threads) fitting.push_back(shape);
  }
  return fitting;
}

}  // namespace tenon::kernels
