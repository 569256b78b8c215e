// Which tile, how many stages, which split-K: from bytes and products, before anything is compiled.
#include "kernels/llvm/scaled_dot/gemm_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "codegen/arch_spec.h"
#include "kernels/llvm/scaled_dot/gemm_estimate.h"

namespace tenon::kernels {
namespace {

constexpr std::array<int64_t, 8> kLastRows = {1, 8, 16, 32, 64, 256, 1024, 4096};

constexpr int kMaxStages = 8, kMaxSplits = 16;
// Scales of a row in a stage, where they wait in registers for accumulators.
constexpr int kMostScales = 8;
// Tokens that a CTA keeps in shared memory: it reads, or computes, one after the other, each in
// registers.
constexpr int kMaxResidentRows = 4;
constexpr int64_t kLongestResident = 8192, kMaxResidentBytes = 40 << 10;
constexpr int64_t kLongestRead = 16384;  // where tokens are only read, and neighbours need no room

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_longer(const GemmProblem& problem, double bytes) {
  return static_cast<double>(problem.weight_bytes()) > bytes;
}

int64_t stage_bytes(const FragmentLayout& layout, int tokens, int units) {
  return int64_t{units} * (layout.unit_words() * 4 + tokens * layout.row_terms * kFragmentRowBytes);
}

// CTAs have as many tiles each: an SM that took one more while the launch before still
// filled others would make all wait.
int64_t exclusive_shared_bytes(const GemmConfig& config, const codegen::GpuTarget& gpu) {
  return gpu.shared_bytes / (config.ctas_per_sm + 1) + 1;
}

// What the partial sums of the warps take where they meet, and barriers.
int64_t room_of_partials(int tokens) {
  return std::max<int64_t>(8 << 10, int64_t{kFragmentRows} * (tokens + 2) * 4 + (1 << 10));
}

void add_skinny_configs(const FragmentLayout& layout, int64_t rows, int overlapping,
                        const codegen::GpuTarget& gpu, Tokens from,
                        std::vector<GemmConfig>& configs) {
  const bool resident_x = from != Tokens::kFetched;
  const codegen::GpuCosts& costs = codegen::costs_of(gpu);
  const GemmProblem problem = GemmProblem::of(layout, rows, overlapping, from, gpu);
  const bool overlaps = overlapping > 0;
  if (layout.is_plain() || rows > kMaxSkinnyTokens || layout.k % kFragmentDepth != 0) {
    return;
  }
  const int tokens = resident_x  ? static_cast<int>(std::bit_ceil(static_cast<uint64_t>(rows)))
                     : rows == 1 ? 1
                     : rows <= 8 ? 8
                                 : 16;
  const int64_t terms = int64_t{tokens} * layout.row_terms;
  const int64_t resident = resident_x ? layout.steps() * terms * (kFragmentDepth + 8) * 2 : 0;
  for (int warp_split_k : {8, 4}) {
    for (int units : {1, 2, 4, 8}) {
      if (layout.steps() % (warp_split_k * units) != 0) continue;
      if (units == 8 && resident_x && !overlaps) continue;  // a stage comes late
      const int64_t all = layout.steps() / (warp_split_k * units);
      GemmConfig config{.tile_n = tokens,
                        .units = units,
                        .warp_split_k = warp_split_k,
                        .resident_x = resident_x,
                        .problem = problem};
      const int64_t x_in_stage = resident_x ? 0 : warp_split_k * terms * kFragmentDepth * 2;
      const int64_t stage = int64_t{units} * (layout.unit_words() * 4 + x_in_stage);
      const int64_t tiles = ceil_of(layout.n * warp_split_k, kFragmentRows);
      // What a CTA fetches before its tokens come is in their way: memory answers in turn. Where
      // there is much more to fetch that does not count.
      const bool is_long = is_longer(problem, costs.most_bytes_beside_others);
      // Neighbours that overlap find room; who waits fills its places, and all of them evenly.
      const int64_t most_kernels = overlaps ? 2 : 1;
      const int most_ctas = overlaps && resident_x && warp_split_k < 8 ? 1 : 2;
      for (config.ctas_per_sm = 1; config.ctas_per_sm <= most_ctas; ++config.ctas_per_sm) {
        int last = 0;
        const int64_t in_time = std::max<int64_t>(
            2, static_cast<int64_t>(costs.bytes_fetched_before) / (stage * config.ctas_per_sm));
        for (int64_t kernels = most_kernels; kernels >= 1; --kernels) {
          const int64_t room = gpu.shared_bytes / (config.ctas_per_sm * kernels) -
                               room_of_partials(tokens) - resident;
          const int64_t turns = ceil_of(tiles, gpu.sm_count * int64_t{config.ctas_per_sm});
          int64_t most = overlaps ? all : all * turns;  // that a CTA ever fills
          if (!overlaps && resident_x && !is_long) most = std::min(most, in_time);
          config.stages = static_cast<int>(std::min({room / stage, most, int64_t{kMaxStages}}));
          if (config.stages < 2 || config.stages == std::exchange(last, config.stages)) continue;
          config.shared_bytes = overlaps ? 0 : exclusive_shared_bytes(config, gpu);
          config.microseconds = estimate_gemm(config, costs);
          configs.push_back(config);
        }
      }
    }
  }
}

// For what is stored, and what changes threads where no warps of their own copy.
int64_t reserved_bytes(const FragmentLayout& layout, int tile_n, const codegen::GpuTarget& gpu) {
  const int64_t reserved = (codegen::arch_spec(gpu.arch).specialises_warps() ? 4 << 10 : 6 << 10) +
                           std::min(tile_n, 32) * 512;
  // Results of f32 change threads twice, in rows with one to spare.
  const bool has_wide_results = layout.row_terms > 1 || layout.widens;
  if (!has_wide_results || tile_n > kMaxSkinnyTokens) return reserved;
  constexpr int64_t kBarriers = 512;
  return std::max(reserved, int64_t{2} * kFragmentRows * (tile_n + 1) * 4 + kBarriers);
}

// All split-K factors of one kind of tile.
void add_configs(const FragmentLayout& layout, int64_t rows, int overlapping,
                 const codegen::GpuTarget& gpu, GemmConfig config,
                 std::vector<GemmConfig>& configs) {
  const int64_t reserve = reserved_bytes(layout, config.tile_n, gpu);
  const bool overlaps = overlapping > 0;
  // Small tiles leave room for a CTA of a neighbour that overlaps.
  const int64_t ctas = config.ctas_per_sm + (overlaps && config.tile_n <= kMaxSkinnyTokens ? 1 : 0);
  const int64_t room = gpu.shared_bytes / (config.tile_n <= kMaxSkinnyTokens ? ctas : 1);
  const int64_t stages = (room - reserve) / stage_bytes(layout, config.tile_n, config.units);
  if (stages < 2) return;
  config.problem = GemmProblem::of(layout, rows, overlapping, Tokens::kFetched, gpu);
  const int64_t steps = layout.steps() / config.units;
  for (int64_t split_k = 1; split_k <= kMaxSplits && split_k <= steps; ++split_k) {
    // Every split has work.
    const int64_t each = (steps + split_k - 1) / split_k;
    if ((steps + each - 1) / each != split_k) continue;
    config.split_k = split_k;
    config.stages =
        static_cast<int>(std::max<int64_t>(2, std::min({int64_t{kMaxStages}, stages, each})));
    config.shared_bytes = overlaps ? 0 : exclusive_shared_bytes(config, gpu);
    config.microseconds = estimate_gemm(config, codegen::costs_of(gpu));
    configs.push_back(config);
  }
}

}  // namespace

Dim GemmConfig::tiles(const FragmentLayout& layout, const Dim& rows) const {
  return ceil_div(rows, Dim(tile_n)) * Dim(layout.row_units());
}

Dim GemmConfig::partial_bytes(const FragmentLayout& layout, const Dim& rows) const {
  if (split_k == 1) return 0;
  return tiles(layout, rows) * Dim(split_k * kFragmentRows * tile_n * int64_t{sizeof(float)});
}

PlannedKernel GemmConfig::planned(const FragmentLayout& layout, const Dim& rows) const {
  KernelConfig config{is_skinny() ? Skeleton::kSkinnyGemm : Skeleton::kGemm,
                      {{Knob::kTileM, tile_m()},
                       {Knob::kTileN, tile_n},
                       {Knob::kKPerStage, k_per_stage()},
                       {Knob::kStages, stages}}};
  if (is_skinny()) {
    config.knobs.emplace_back(Knob::kWarpSplitK, warp_split_k);
    if (resident_x) config.knobs.emplace_back(Knob::kResidentX, 1);
  } else {
    config.knobs.emplace_back(Knob::kSplitK, split_k);
  }
  config.knobs.emplace_back(Knob::kCtasPerSm, ctas_per_sm);
  const Dim counters = split_k == 1 ? Dim(0) : tiles(layout, rows) * Dim(sizeof(int32_t));
  return {std::move(config), microseconds, partial_bytes(layout, rows) + counters,
          problem.numbers()};
}

std::optional<GemmConfig> gemm_config_from(const KernelConfig& config, const GemmProblem& problem) {
  const auto knob = [&](Knob wanted, int64_t otherwise) {
    return config.find(wanted).value_or(otherwise);
  };
  const int64_t warp_split_k = knob(Knob::kWarpSplitK, 0), stages = knob(Knob::kStages, 0);
  const int64_t tile_n = knob(Knob::kTileN, 0), split_k = knob(Knob::kSplitK, 1);
  const int64_t ctas = knob(Knob::kCtasPerSm, 1);
  const int64_t unit_k = problem.unit_k * std::max<int64_t>(warp_split_k, 1);
  const int64_t units = knob(Knob::kKPerStage, 0) / unit_k;
  const bool is_skinny = config.skeleton == Skeleton::kSkinnyGemm;
  const auto is_between = [](int64_t value, int64_t least, int64_t most) {
    return least <= value && value <= most;
  };
  const bool is_power =
      is_between(tile_n, 1, 256) && std::has_single_bit(static_cast<uint64_t>(tile_n));
  if (is_skinny != (warp_split_k > 0) || !is_between(warp_split_k, 0, 8) || !is_power ||
      (!is_skinny && (config.skeleton != Skeleton::kGemm || tile_n < 8)) ||
      !is_between(units, 1, 8) || !is_between(stages, 2, kMaxStages) ||
      !is_between(split_k, 1, kMaxSplits) ||
      !is_between(ctas, 1, tile_n <= kMaxSkinnyTokens ? 2 : 1)) {
    return std::nullopt;
  }
  return GemmConfig{.tile_n = static_cast<int>(tile_n),
                    .units = static_cast<int>(units),
                    .unit_k = problem.unit_k,
                    .stages = static_cast<int>(stages),
                    .ctas_per_sm = static_cast<int>(ctas),
                    .split_k = split_k,
                    .warp_split_k = static_cast<int>(warp_split_k),
                    .resident_x = knob(Knob::kResidentX, 0) != 0,
                    .problem = problem};
}

std::vector<GemmConfig> rank_gemm_configs(const FragmentLayout& layout, int64_t rows,
                                          int overlapping, const codegen::GpuTarget& gpu) {
  const GemmProblem problem = GemmProblem::of(layout, rows, overlapping, Tokens::kFetched, gpu);
  if (rows <= kMaxSkinnyTokens &&
      is_longer(problem, codegen::costs_of(gpu).most_bytes_beside_others)) {
    overlapping = 0;
  }
  std::vector<GemmConfig> configs;
  for (int tokens : {8, 16, 32, 64, 128, 256}) {
    if (tokens > 8 && tokens / 2 >= rows) break;
    // Registers hold the accumulators twice, and of small blocks more scales.
    if (layout.scales_blocks() && tokens > (layout.accumulators_per_unit() > 1 ? 64 : 128)) break;
    for (int units : {1, 2, 4}) {
      // Stages of one unit keep the thread that copies too busy, unless tokens are many.
      const bool sensible = tokens > 64 ? units <= 2 : units >= 2 || layout.steps() % 2 != 0;
      if (layout.steps() % units != 0 || !sensible) continue;
      if (units * layout.accumulators_per_unit() > kMostScales) break;
      for (int ctas = 1; ctas <= (tokens <= kMaxSkinnyTokens ? 2 : 1); ++ctas) {
        add_configs(
            layout, rows, overlapping, gpu,
            {.tile_n = tokens, .units = units, .unit_k = layout.depth(), .ctas_per_sm = ctas},
            configs);
      }
    }
  }
  add_skinny_configs(layout, rows, overlapping, gpu, Tokens::kFetched, configs);
  const bool overlaps = overlapping > 0;
  if (rows == 1 && (layout.can_accumulate_per_block() || !overlaps) &&
      layout.k <= (overlaps ? kLongestResident : kLongestRead)) {
    add_skinny_configs(layout, rows, overlapping, gpu, Tokens::kResident, configs);
  }
  std::ranges::stable_sort(configs, {}, &GemmConfig::microseconds);
  return configs;
}

std::vector<GemmConfig> rank_resident_configs(const FragmentLayout& layout, int64_t rows,
                                              const codegen::GpuTarget& gpu) {
  std::vector<GemmConfig> configs;
  if (rows < 1 || rows > kMaxResidentRows || layout.k > kLongestResident ||
      rows * layout.row_terms * layout.k * 2 > kMaxResidentBytes) {
    return configs;
  }
  add_skinny_configs(layout, rows, /*overlapping=*/0, gpu, Tokens::kComputed, configs);
  std::ranges::stable_sort(configs, {}, &GemmConfig::microseconds);
  return configs;
}

std::vector<RowRange> row_ranges(const Dim& rows) {
  if (rows.is_constant()) return {{rows.value(), rows.value()}};
  std::vector<RowRange> ranges;
  int64_t first = 0;
  for (const int64_t last : kLastRows) {
    ranges.push_back({first, last == kLastRows.back() ? RowRange::kNoLimit : last});
    first = last + 1;
  }
  return ranges;
}

int64_t most_ranked_rows() { return kLastRows.back(); }

}  // namespace tenon::kernels
