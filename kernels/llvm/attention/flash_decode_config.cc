#include "kernels/llvm/attention/flash_decode_config.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "codegen/gpu_costs.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kReserved = 1 << 10;  // of shared memory, for each CTA
constexpr int64_t kSmallBuffers = 4
                                  << 10;  // barriers, maxima and denominators, what changes threads

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

int FlashDecodeConfig::merged_boxes() const {
  constexpr int kMergedBytes = 16 << 10;
  return std::clamp(kMergedBytes / (warps * kept_rows * columns * 4), 1, value_boxes);
}

int64_t FlashDecodeConfig::shared_bytes() const {
  const int64_t stage = int64_t{keys()} * columns * 2 * (key_boxes + value_boxes) / codes;
  const int64_t queries = int64_t{kRows} * columns * 2 * key_boxes;
  return stages * stage + queries + merged_elements() * 4 + kSmallBuffers;
}

Dim FlashDecodeConfig::places(const AttentionProblem& problem, int sm_count) const {
  const Dim heads = max(Dim(1), problem.batch * problem.attention.kv_heads);
  return floor_div(Dim(int64_t{sm_count} * ctas_per_sm), heads);
}

Dim FlashDecodeConfig::split_kv(const AttentionProblem& problem, int sm_count) const {
  const Dim wanted = ceil_div(problem.all_keys, Dim(keys()));
  return max(Dim(1), min(places(problem, sm_count), wanted));
}

Dim FlashDecodeConfig::spare_ctas(const AttentionProblem& problem, int sm_count) const {
  const Dim left = places(problem, sm_count) - split_kv(problem, sm_count);
  return max(Dim(0), min(Dim(1), left));
}

Dim FlashDecodeConfig::partial_bytes(const AttentionProblem& problem, const Dim& count,
                                     int64_t columns) const {
  const Dim heads = problem.batch * problem.attention.kv_heads;
  return heads * count * int64_t{kept_rows} * Dim(columns * int64_t{sizeof(float)});
}

PlannedKernel FlashDecodeConfig::planned(const AttentionProblem& problem,
                                         const codegen::GpuTarget& gpu) const {
  const Dim split = split_kv(problem, gpu.sm_count);
  KernelConfig config{Skeleton::kFlashDecode,
                      {{Knob::kSplitKv, split.is_constant() ? split.value() : 0},
                       {Knob::kWarps, warps},
                       {Knob::kKvPerStage, keys()},
                       {Knob::kStages, stages},
                       {Knob::kCtasPerSm, ctas_per_sm}}};
  if (codes > 1) config.knobs.emplace_back(Knob::kKvCodes, 1);
  PlannedKernel kernel{std::move(config)};
  // An output, a maximum and a sum for each split; the counters where they meet.
  const Dim heads = problem.batch * problem.attention.kv_heads;
  kernel.workspace_bytes = partial_bytes(problem, split, int64_t{value_boxes} * columns + 2) +
                           heads * Dim(sizeof(int32_t));
  return kernel;
}

Support reads_codes(const AttentionProblem& problem) {
  if (!problem.attention.has_codes()) return Support::no("the KV cache is not quantised");
  if (problem.depth != problem.value_depth) return Support::no("key and value head sizes differ");
  constexpr int64_t kMostDepth = 128;
  if (problem.depth > kMostDepth) {
    return Support::no(
        fmt::format("head_size {} leaves no registers to dequantise in", problem.depth));
  }
  const int64_t bytes = problem.cache_width(problem.depth);
  if (bytes % 16 != 0)
    return Support::no(fmt::format("KV cache rows of {} bytes are not a multiple of 16", bytes));
  return Support::yes();
}

std::vector<FlashDecodeConfig> rank_flash_decode_configs(const AttentionProblem& problem,
                                                         int64_t queries,
                                                         const codegen::GpuTarget& gpu) {
  // As measured on an H200; the second leaves room for a CTA of the next launch, which long caches
  // gain from: it streams its keys while this one merges.
  constexpr FlashDecodeConfig kConfigs[] = {
      {4, 32, 3, 1}, {4, 16, 3, 1}, {4, 16, 5, 1}, {8, 16, 3, 1},
      {4, 16, 3, 2}, {8, 16, 2, 1}, {4, 16, 2, 3}, {4, 16, 2, 1},
  };
  constexpr FlashDecodeConfig kCodeConfigs[] = {
      {4, 16, 6, 1}, {4, 16, 8, 1}, {4, 32, 4, 1}, {4, 16, 3, 1}, {4, 16, 3, 2}, {4, 16, 2, 1},
  };
  const bool has_codes = reads_codes(problem).ok;
  const std::span<const FlashDecodeConfig> candidates =
      has_codes ? std::span<const FlashDecodeConfig>(kCodeConfigs) : std::span(kConfigs);
  std::vector<FlashDecodeConfig> fitting;
  for (FlashDecodeConfig config : candidates) {
    config.columns = has_codes ? code_columns(problem) : box_columns(problem);
    if (has_codes) config.codes = 16 / bit_width(problem.attention.cache_type);
    const int box = config.columns * config.codes;
    config.key_boxes = boxes(problem.depth, box) * config.codes;
    config.value_boxes = boxes(problem.value_depth, box) * config.codes;
    config.kept_rows = static_cast<int>(problem.group() * queries);
    const int64_t places = (gpu.shared_bytes + kReserved) / (config.shared_bytes() + kReserved);
    // Long heads and codes need more registers than two CTAs have.
    const bool is_small = config.warp_keys <= 16 && problem.value_depth <= 128 && !has_codes;
    if (is_small && config.ctas_per_sm == 1 && places > 1) config.resident_ctas = 2;
    if (places >= config.ctas_per_sm && config.threads() <= gpu.threads) fitting.push_back(config);
  }
  const auto long_cache = static_cast<int64_t>(codegen::costs_of(gpu).long_cache_keys);
  const bool is_long = problem.all_keys.is_constant() && problem.all_keys.value() >= long_cache;
  if (is_long && fitting.size() > 1 && fitting[1].resident_ctas > 1) {
    std::swap(fitting[0], fitting[1]);
  }
  return fitting;
}

}  // namespace tenon::kernels
