// Which tile, how many stages, which split-K: from bytes and products, before anything is compiled.
#include "kernels/llvm/scaled_dot/gemm_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "codegen/arch_spec.h"

namespace tenon::kernels {
namespace {

constexpr std::array<int64_t, 8> kLastRows = {1, 8, 16, 32, 64, 256, 1024, 4096};

constexpr int kMaxStages = 8;
// Scales of a row in a stage, where they wait in registers for accumulators.
constexpr int kMostScales = 8;
constexpr int kMaxSkinnyTokens = 16;  // up to which two CTAs share an SM
// Tokens that a CTA keeps in shared memory: it reads, or computes, one after the other, each in
// registers.
constexpr int kMaxResidentRows = 4;
constexpr int64_t kLongestResident = 8192, kMaxResidentBytes = 40 << 10;
constexpr int64_t kLongestRead = 16384;  // where tokens are only read, and neighbours need no room

// Few tokens come with the stages of weights, or are read by each CTA when it begins and stay, or
// are computed by it then.
enum class Tokens : uint8_t { kFetched, kResident, kComputed };

int64_t weight_bytes(const FragmentLayout& layout) {
  return layout.row_units() * layout.steps() * layout.unit_words() * 4;
}

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t stage_bytes(const FragmentLayout& layout, int tokens, int units) {
  return int64_t{units} * (layout.unit_words() * 4 + tokens * layout.row_terms * kFragmentRowBytes);
}

// Of few tokens products are not done beside the dequantising, and eight warps cannot fill the time
// that they wait for each other's results.
double dequantize_time(const GemmConfig& config, const codegen::GemmCosts& costs) {
  if (config.tile_n > kMaxSkinnyTokens) return costs.dequantize;
  return costs.dequantize_for_few[config.ctas_per_sm == 1 ? 0 : 1] +
         costs.dequantize_per_token * config.tile_n;
}

double estimate(const FragmentLayout& layout, int64_t rows, const GemmConfig& config,
                const codegen::GpuTarget& gpu) {
  const codegen::GemmCosts& costs = codegen::arch_spec(gpu.arch).costs->gemm;
  const int sm_count = gpu.sm_count;
  const int64_t items = ceil_of(rows, config.tile_n) * layout.row_units() * config.split_k;
  const int64_t turns = ceil_of(items, int64_t{sm_count} * config.ctas_per_sm);
  const int64_t each =  // of an SM
      turns * std::min<int64_t>(config.ctas_per_sm, ceil_of(items, sm_count));
  const auto units = static_cast<double>(ceil_of(layout.steps(), config.split_k));
  const double dequantize = layout.is_plain() ? 0 : dequantize_time(config, costs);
  const double multiply = costs.product * config.tile_n * layout.row_terms;
  // Two CTAs dequantise and multiply at the same time; one does so in turns.
  const bool together = config.ctas_per_sm > 1 || layout.is_plain();
  const double compute = together ? std::max(dequantize, multiply) : dequantize + multiply;
  const double unit = std::max(layout.unit_words() * 4 / costs.bytes, compute) +
                      costs.per_stage / config.units / config.ctas_per_sm;
  const auto split_k = static_cast<double>(config.split_k);
  const double overhead =
      costs.per_tile + (config.split_k > 1
                            ? costs.meet + (1 + split_k) * config.tile_n * costs.pass_partial_sums
                            : 0);
  return costs.per_kernel + static_cast<double>(each) * units * unit +
         static_cast<double>(turns) * overhead;
}

double estimate_overlapped(const FragmentLayout& layout, int64_t rows, const GemmConfig& config,
                           const codegen::GpuTarget& gpu) {
  const codegen::OverlappedGemmCosts& costs = codegen::arch_spec(gpu.arch).costs->overlapped_gemm;
  const double dequantize = codegen::arch_spec(gpu.arch).costs->gemm.dequantize;
  const int sm_count = gpu.sm_count;
  const auto items =
      static_cast<double>(ceil_of(rows, config.tile_n) * layout.row_units() * config.split_k);
  const size_t size =
      static_cast<size_t>(std::countr_zero(static_cast<unsigned>(config.tile_n)) - 3);
  const double busy = config.ctas_per_sm > 1 ? costs.unit_of_two[size] : costs.unit[size];
  // Weights that are operands already are not dequantised.
  const double compute = busy - (layout.is_plain() ? std::min(busy / 2, dequantize) : 0) +
                         costs.per_stage / config.units / config.ctas_per_sm;
  const double unit = std::max(compute, layout.unit_words() * 4 / costs.bytes);
  const auto split_k = static_cast<double>(config.split_k);
  double overhead = costs.per_tile + costs.per_tile_token * config.tile_n;
  if (config.split_k > 1) {
    overhead +=
        costs.meet + config.tile_n * (costs.pass_partial_sums + costs.pass_per_split * split_k);
  }
  const auto units = static_cast<double>(ceil_of(layout.steps(), config.split_k));
  const double each = units * unit + overhead / config.ctas_per_sm;
  const double turns = std::ceil(items / (sm_count * config.ctas_per_sm));
  return std::max(costs.per_kernel + items / sm_count * each,
                  (costs.begin_alone + turns * each * config.ctas_per_sm) / costs.launches_at_once);
}

// How a skinny GEMM uses an SM.
struct SkinnyWork {
  int64_t tiles, turns, ctas;  // in all; of a CTA; of an SM
  double units;                // of 128 x 64, in a tile
  bool at_once;                // all there is to fetch is fetched at once
  double ahead;                // units that are on their way while one is used
  double weight, cached;       // bytes of a unit in memory; with the tokens that come with it
  double terms;                // tokens to multiply

  SkinnyWork(const FragmentLayout& layout, int64_t rows, const GemmConfig& config, int sm_count) {
    const int64_t row_tiles = ceil_of(layout.n * config.warp_split_k, kFragmentRows);
    tiles = ceil_of(rows, config.tile_n) * row_tiles;
    turns = ceil_of(tiles, int64_t{sm_count} * config.ctas_per_sm);
    ctas = std::min<int64_t>(config.ctas_per_sm, ceil_of(tiles, sm_count));
    units = static_cast<double>(layout.steps()) / config.warp_split_k;
    // While a stage is used it is not filled: the others must cover the way to memory. Where x
    // is resident it is given back as soon as its words are in registers.
    at_once = turns == 1 && config.stages * config.units >= units;
    const double others = at_once || config.resident_x ? config.stages : config.stages - 1;
    ahead = others * config.units * static_cast<double>(ctas);
    weight = layout.unit_words() * 4;
    terms = config.tile_n * layout.row_terms;
    cached = weight + config.warp_split_k * terms * kFragmentDepth * 2;
  }
};

// A CTA's warps share K: nothing waits for other CTAs, but each reads all of x.
double estimate_skinny(const FragmentLayout& layout, const GemmConfig& config,
                       const SkinnyWork& work, Tokens from, const codegen::SkinnyGemmCosts& costs) {
  const auto ctas = static_cast<double>(work.ctas);
  const double read = std::max(
      {costs.latency / work.ahead, work.weight / costs.bytes, work.cached / costs.cached_bytes});
  const double dequantize =
      costs.dequantize[static_cast<size_t>(work.ctas - 1)] *
      (config.accumulates_per_block(layout) ? 1 : costs.times_scaling_weights);
  const double compute =
      dequantize + costs.product * work.terms + (config.resident_x ? 0 : costs.late_stage);
  const double resident = config.resident_x ? costs.make_resident * ctas : 0;
  // One stage is used, one is on its way, and one has just come; fewer will do where all there is
  // to fetch is fetched at once, but not beside computing tokens.
  const bool starved = config.stages < 3 && (from == Tokens::kComputed || !work.at_once);
  return costs.per_kernel + resident + costs.first_stage / config.stages +
         (starved ? costs.starved : 0) +
         static_cast<double>(work.turns * work.ctas) * work.units *
             (std::max(read, compute) + costs.per_stage / config.units) +
         static_cast<double>(work.turns) * costs.per_tile;
}

double estimate_skinny_overlapped(const FragmentLayout& layout, const GemmConfig& config,
                                  const SkinnyWork& work, int sm_count,
                                  const codegen::OverlappedSkinnyGemmCosts& costs) {
  const auto ctas = static_cast<double>(work.ctas);
  const bool per_block = config.accumulates_per_block(layout);
  const double bytes = per_block ? costs.bytes_per_block : costs.bytes;
  const double read =
      std::max({costs.latency / work.ahead, work.weight / bytes, work.cached / costs.cached_bytes});
  const double dequantize = per_block ? costs.times_scaling_accumulators : 1;
  const double resident =
      config.resident_x && work.ctas > 1 && work.turns > 1 ? costs.resident_twice : 0;
  const double compute =
      dequantize * costs.unit + costs.product * work.terms + costs.per_stage / config.units / ctas;
  const double each = work.units * std::max(read, compute) + costs.per_tile / ctas;
  return costs.per_kernel + resident + static_cast<double>(work.tiles) / sm_count * each;
}

double estimate_skinny(const FragmentLayout& layout, int64_t rows, const GemmConfig& config,
                       const codegen::GpuTarget& gpu, bool overlaps, Tokens from) {
  const codegen::GpuCosts& costs = *codegen::arch_spec(gpu.arch).costs;
  const SkinnyWork work(layout, rows, config, gpu.sm_count);
  if (!overlaps) return estimate_skinny(layout, config, work, from, costs.skinny_gemm);
  return estimate_skinny_overlapped(layout, config, work, gpu.sm_count,
                                    costs.overlapped_skinny_gemm);
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

void add_skinny_configs(const FragmentLayout& layout, int64_t rows, bool overlaps,
                        const codegen::GpuTarget& gpu, Tokens from,
                        std::vector<GemmConfig>& configs) {
  const bool resident_x = from != Tokens::kFetched;
  const codegen::GpuCosts& costs = *codegen::arch_spec(gpu.arch).costs;
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
      GemmConfig config{
          .tile_n = tokens, .units = units, .warp_split_k = warp_split_k, .resident_x = resident_x};
      const int64_t x_in_stage = resident_x ? 0 : warp_split_k * terms * kFragmentDepth * 2;
      const int64_t stage = int64_t{units} * (layout.unit_words() * 4 + x_in_stage);
      const int64_t tiles = ceil_of(layout.n * warp_split_k, kFragmentRows);
      // What a CTA fetches before its tokens come is in their way: memory answers in turn. Where
      // there is much more to fetch that does not count.
      const bool is_long = weight_bytes(layout) > costs.most_bytes_beside_others;
      // Neighbours that overlap find room; who waits fills its places, and all of them evenly.
      const int64_t most_kernels = overlaps ? 2 : 1;
      const int most_ctas = overlaps && resident_x && warp_split_k < 8 ? 1 : 2;
      for (config.ctas_per_sm = 1; config.ctas_per_sm <= most_ctas; ++config.ctas_per_sm) {
        int last = 0;
        const int64_t in_time =
            std::max<int64_t>(2, costs.bytes_fetched_before / (stage * config.ctas_per_sm));
        for (int64_t kernels = most_kernels; kernels >= 1; --kernels) {
          const int64_t room = gpu.shared_bytes / (config.ctas_per_sm * kernels) -
                               room_of_partials(tokens) - resident;
          const int64_t turns = ceil_of(tiles, gpu.sm_count * int64_t{config.ctas_per_sm});
          int64_t most = overlaps ? all : all * turns;  // that a CTA ever fills
          if (!overlaps && resident_x && !is_long) most = std::min(most, in_time);
          config.stages = static_cast<int>(std::min({room / stage, most, int64_t{kMaxStages}}));
          if (config.stages < 2 || config.stages == std::exchange(last, config.stages)) continue;
          config.shared_bytes = overlaps ? 0 : exclusive_shared_bytes(config, gpu);
          config.microseconds = estimate_skinny(layout, rows, config, gpu, overlaps, from);
          configs.push_back(config);
        }
      }
    }
  }
}

// All split-K factors of one kind of tile.
void add_configs(const FragmentLayout& layout, int64_t rows, bool overlaps,
                 const codegen::GpuTarget& gpu, GemmConfig config,
                 std::vector<GemmConfig>& configs) {
  // For what is stored, and what changes threads where no warps of their own copy.
  const int64_t reserve = (codegen::arch_spec(gpu.arch).specialises_warps() ? 4 << 10 : 6 << 10) +
                          std::min(config.tile_n, 32) * 512;
  // Small tiles leave room for a CTA of a neighbour that overlaps.
  const int64_t ctas = config.ctas_per_sm + (overlaps && config.tile_n <= kMaxSkinnyTokens ? 1 : 0);
  const int64_t room = gpu.shared_bytes / (config.tile_n <= kMaxSkinnyTokens ? ctas : 1);
  const int64_t stages = (room - reserve) / stage_bytes(layout, config.tile_n, config.units);
  if (stages < 2) return;
  const int64_t steps = layout.steps() / config.units;
  for (int64_t split_k = 1; split_k <= 16 && split_k <= steps; ++split_k) {
    // Every split has work.
    const int64_t each = (steps + split_k - 1) / split_k;
    if ((steps + each - 1) / each != split_k) continue;
    config.split_k = split_k;
    config.stages =
        static_cast<int>(std::max<int64_t>(2, std::min({int64_t{kMaxStages}, stages, each})));
    config.shared_bytes = overlaps ? 0 : exclusive_shared_bytes(config, gpu);
    config.microseconds = (overlaps ? estimate_overlapped : estimate)(layout, rows, config, gpu);
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
  return {std::move(config), microseconds, partial_bytes(layout, rows) + counters};
}

std::vector<GemmConfig> rank_gemm_configs(const FragmentLayout& layout, int64_t rows, bool overlaps,
                                          const codegen::GpuTarget& gpu) {
  if (rows <= kMaxSkinnyTokens &&
      weight_bytes(layout) > codegen::arch_spec(gpu.arch).costs->most_bytes_beside_others)
    overlaps = false;
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
            layout, rows, overlaps, gpu,
            {.tile_n = tokens, .units = units, .unit_k = layout.depth(), .ctas_per_sm = ctas},
            configs);
      }
    }
  }
  add_skinny_configs(layout, rows, overlaps, gpu, Tokens::kFetched, configs);
  if (rows == 1 && (layout.can_accumulate_per_block() || !overlaps) &&
      layout.k <= (overlaps ? kLongestResident : kLongestRead)) {
    add_skinny_configs(layout, rows, overlaps, gpu, Tokens::kResident, configs);
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
  add_skinny_configs(layout, rows, /*overlaps=*/false, gpu, Tokens::kComputed, configs);
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
