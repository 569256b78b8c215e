#include "kernels/llvm/attention/gpu_decode_shape.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace tenon::kernels {
namespace {

constexpr int64_t kReserved = 1 << 10;      // of shared memory, for each block
constexpr int64_t kSmallBuffers = 4 << 10;  // barriers, maxima and sums, what changes threads

// Whole rows in one box keep the memory's order where they can.
int box_columns(const AttentionProblem& problem) {
  return problem.depth % 128 == 0 && problem.value_depth % 128 == 0 ? 128 : 64;
}

// A row of codes, to the next size that a box can have.
int code_columns(const AttentionProblem& problem) {
  const auto bytes = static_cast<unsigned>(problem.cache_width(problem.depth));
  return static_cast<int>(std::clamp(std::bit_ceil(bytes), 32u, 128u) / 2);
}

int boxes(int64_t depth, int columns) { return static_cast<int>((depth + columns - 1) / columns); }

}  // namespace

int DecodeShape::merged_boxes() const {
  constexpr int kMergedBytes = 16 << 10;
  return std::clamp(kMergedBytes / (warps * kept_rows * columns * 4), 1, value_boxes);
}

int64_t DecodeShape::shared_bytes() const {
  const int64_t slot = int64_t{keys()} * columns * 2 * (key_boxes + value_boxes) / codes;
  const int64_t queries = int64_t{kRows} * columns * 2 * key_boxes;
  return slots * slot + queries + merged_elements() * 4 + kSmallBuffers;
}

Dim DecodeShape::places(const AttentionProblem& problem, int multiprocessors) const {
  const Dim heads = max(Dim(1), problem.batch * problem.attention.kv_heads);
  return floor_div(Dim(int64_t{multiprocessors} * blocks), heads);
}

Dim DecodeShape::splits(const AttentionProblem& problem, int multiprocessors) const {
  const Dim wanted = ceil_div(problem.all_keys, Dim(keys()));
  return max(Dim(1), min(places(problem, multiprocessors), wanted));
}

Dim DecodeShape::spare_blocks(const AttentionProblem& problem, int multiprocessors) const {
  const Dim left = places(problem, multiprocessors) - splits(problem, multiprocessors);
  return max(Dim(0), min(Dim(1), left));
}

std::string DecodeShape::text() const {
  return fmt::format("{} warps, {} slots of {} keys, {} blocks{}", warps, slots, keys(), blocks,
                     codes > 1 ? ", codes decoded in registers" : "");
}

Support reads_codes(const AttentionProblem& problem) {
  if (!problem.attention.has_codes()) return Support::no("the cache has no codes");
  if (problem.depth != problem.value_depth) return Support::no("values differ from keys in size");
  constexpr int64_t kMostDepth = 128;
  if (problem.depth > kMostDepth) {
    return Support::no(fmt::format("heads of {} leave no registers to decode in", problem.depth));
  }
  const int64_t bytes = problem.cache_width(problem.depth);
  if (bytes % 16 != 0) return Support::no(fmt::format("rows of {} bytes of codes", bytes));
  return Support::yes();
}

std::vector<DecodeShape> rank_decode_shapes(const AttentionProblem& problem, int64_t queries,
                                            const codegen::GpuTarget& gpu) {
  // As measured; the second leaves room for a block of the next launch, which long caches gain
  // from: it streams its keys while this one merges.
  constexpr DecodeShape kShapes[] = {
      {4, 32, 3, 1}, {4, 16, 3, 1}, {4, 16, 5, 1}, {8, 16, 3, 1},
      {4, 16, 3, 2}, {8, 16, 2, 1}, {4, 16, 2, 3}, {4, 16, 2, 1},
  };
  constexpr DecodeShape kCodeShapes[] = {
      {4, 16, 6, 1}, {4, 16, 8, 1}, {4, 32, 4, 1}, {4, 16, 3, 1}, {4, 16, 3, 2}, {4, 16, 2, 1},
  };
  const bool has_codes = reads_codes(problem).ok;
  const std::span<const DecodeShape> shapes =
      has_codes ? std::span<const DecodeShape>(kCodeShapes) : std::span(kShapes);
  std::vector<DecodeShape> fitting;
  for (DecodeShape shape : shapes) {
    shape.columns = has_codes ? code_columns(problem) : box_columns(problem);
    if (has_codes) shape.codes = 16 / bit_width(problem.attention.cache_type);
    const int box = shape.columns * shape.codes;
    shape.key_boxes = boxes(problem.depth, box) * shape.codes;
    shape.value_boxes = boxes(problem.value_depth, box) * shape.codes;
    shape.kept_rows = static_cast<int>(problem.group() * queries);
    const int64_t places = (gpu.shared_bytes + kReserved) / (shape.shared_bytes() + kReserved);
    // Long heads and codes need more registers than two blocks have.
    const bool is_small = shape.warp_keys <= 16 && problem.value_depth <= 128 && !has_codes;
    if (is_small && shape.blocks == 1 && places > 1) shape.resident = 2;
    if (places >= shape.blocks && shape.threads() <= gpu.threads) fitting.push_back(shape);
  }
  constexpr int64_t kLongCache = 4096;
  const bool is_long = problem.all_keys.is_constant() && problem.all_keys.value() >= kLongCache;
  if (is_long && fitting.size() > 1 && fitting[1].resident > 1) std::swap(fitting[0], fitting[1]);
  return fitting;
}

}  // namespace tenon::kernels
