#include "kernels/llvm/scaled_dot/gemm_estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tenon::kernels {
namespace {

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of few tokens products are not done beside the dequantising, and eight warps cannot fill the time
// that they wait for each other's results.
double dequantize_time(const GemmConfig& config, const codegen::GemmCosts& costs) {
  if (config.tile_n > kMaxSkinnyTokens) return costs.dequantize;
  return costs.dequantize_for_few[config.ctas_per_sm == 1 ? 0 : 1] +
         costs.dequantize_per_token * config.tile_n;
}

double estimate_waiting(const GemmProblem& problem, const GemmConfig& config,
                        const codegen::GemmCosts& costs) {
  const int sm_count = problem.sm_count;
  const int64_t items = ceil_of(problem.rows, config.tile_n) * problem.row_units() * config.split_k;
  const int64_t turns = ceil_of(items, int64_t{sm_count} * config.ctas_per_sm);
  const int64_t each =  // of an SM
      turns * std::min<int64_t>(config.ctas_per_sm, ceil_of(items, sm_count));
  const auto units = static_cast<double>(ceil_of(problem.steps(), config.split_k));
  const double dequantize = problem.is_plain ? 0 : dequantize_time(config, costs);
  const double multiply = costs.product * config.tile_n * problem.row_terms;
  // Two CTAs dequantise and multiply at the same time; one does so in turns.
  const bool together = config.ctas_per_sm > 1 || problem.is_plain;
  const double compute = together ? std::max(dequantize, multiply) : dequantize + multiply;
  const double unit = std::max(problem.unit_words * 4 / costs.bytes, compute) +
                      costs.per_stage / config.units / config.ctas_per_sm;
  const auto split_k = static_cast<double>(config.split_k);
  const double overhead =
      costs.per_tile + (config.split_k > 1
                            ? costs.meet + (1 + split_k) * config.tile_n * costs.pass_partial_sums
                            : 0);
  return costs.per_kernel + static_cast<double>(each) * units * unit +
         static_cast<double>(turns) * overhead;
}

double estimate_overlapped(const GemmProblem& problem, const GemmConfig& config,
                           const codegen::OverlappedGemmCosts& costs, double dequantize) {
  const int sm_count = problem.sm_count;
  const auto items = static_cast<double>(ceil_of(problem.rows, config.tile_n) *
                                         problem.row_units() * config.split_k);
  const size_t size =
      static_cast<size_t>(std::countr_zero(static_cast<unsigned>(config.tile_n)) - 3);
  const double busy = config.ctas_per_sm > 1 ? costs.unit_of_two[size] : costs.unit[size];
  // Weights that are operands already are not dequantised.
  const double compute = busy - (problem.is_plain ? std::min(busy / 2, dequantize) : 0) +
                         costs.per_stage / config.units / config.ctas_per_sm;
  const double unit = std::max(compute, problem.unit_words * 4 / costs.bytes);
  const auto split_k = static_cast<double>(config.split_k);
  double overhead = costs.per_tile + costs.per_tile_token * config.tile_n;
  if (config.split_k > 1) {
    overhead +=
        costs.meet + config.tile_n * (costs.pass_partial_sums + costs.pass_per_split * split_k);
  }
  const auto units = static_cast<double>(ceil_of(problem.steps(), config.split_k));
  const double each = units * unit + overhead / config.ctas_per_sm;
  const double turns = std::ceil(items / (sm_count * config.ctas_per_sm));
  const double at_once = std::min(costs.launches_at_once, static_cast<double>(problem.overlapping));
  return std::max(costs.per_kernel + items / sm_count * each,
                  (costs.begin_alone + turns * each * config.ctas_per_sm) / at_once);
}

// How a skinny GEMM uses an SM.
struct SkinnyWork {
  int64_t tiles, turns, ctas;  // in all; of a CTA; of an SM
  double units;                // of 128 x 64, in a tile
  bool at_once;                // all there is to fetch is fetched at once
  double ahead;                // units that are on their way while one is used
  double weight, cached;       // bytes of a unit in memory; with the tokens that come with it
  double terms;                // tokens to multiply

  SkinnyWork(const GemmProblem& problem, const GemmConfig& config) {
    const int64_t row_tiles = ceil_of(problem.n * config.warp_split_k, kFragmentRows);
    tiles = ceil_of(problem.rows, config.tile_n) * row_tiles;
    turns = ceil_of(tiles, int64_t{problem.sm_count} * config.ctas_per_sm);
    ctas = std::min<int64_t>(config.ctas_per_sm, ceil_of(tiles, problem.sm_count));
    units = static_cast<double>(problem.steps()) / config.warp_split_k;
    // While a stage is used it is not filled: the others must cover the way to memory. Where x
    // is resident it is given back as soon as its words are in registers.
    at_once = turns == 1 && config.stages * config.units >= units;
    const double others = at_once || config.resident_x ? config.stages : config.stages - 1;
    ahead = others * config.units * static_cast<double>(ctas);
    weight = problem.unit_words * 4;
    terms = config.tile_n * problem.row_terms;
    cached = weight + config.warp_split_k * terms * kFragmentDepth * 2;
  }
};

// A CTA's warps share K: nothing waits for other CTAs, but each reads all of x.
double estimate_skinny(const GemmProblem& problem, const GemmConfig& config,
                       const codegen::SkinnyGemmCosts& costs) {
  const SkinnyWork work(problem, config);
  const auto ctas = static_cast<double>(work.ctas);
  const double read = std::max(
      {costs.latency / work.ahead, work.weight / costs.bytes, work.cached / costs.cached_bytes});
  const double dequantize = costs.dequantize[static_cast<size_t>(work.ctas - 1)] *
                            (config.accumulates_per_block(problem.can_accumulate_per_block)
                                 ? 1
                                 : costs.times_scaling_weights);
  const double compute =
      dequantize + costs.product * work.terms + (config.resident_x ? 0 : costs.late_stage);
  const double resident = config.resident_x ? costs.make_resident * ctas : 0;
  // One stage is used, one is on its way, and one has just come; fewer will do where all there is
  // to fetch is fetched at once, but not beside computing tokens.
  const bool starved = config.stages < 3 && (problem.tokens == Tokens::kComputed || !work.at_once);
  return costs.per_kernel + resident + costs.first_stage / config.stages +
         (starved ? costs.starved : 0) +
         static_cast<double>(work.turns * work.ctas) * work.units *
             (std::max(read, compute) + costs.per_stage / config.units) +
         static_cast<double>(work.turns) * costs.per_tile;
}

double estimate_skinny_overlapped(const GemmProblem& problem, const GemmConfig& config,
                                  const codegen::OverlappedSkinnyGemmCosts& costs) {
  const SkinnyWork work(problem, config);
  const auto ctas = static_cast<double>(work.ctas);
  const bool per_block = config.accumulates_per_block(problem.can_accumulate_per_block);
  const double bytes = per_block ? costs.bytes_per_block : costs.bytes;
  const double read =
      std::max({costs.latency / work.ahead, work.weight / bytes, work.cached / costs.cached_bytes});
  const double dequantize = per_block ? costs.times_scaling_accumulators : 1;
  const double resident =
      config.resident_x && work.ctas > 1 && work.turns > 1 ? costs.resident_twice : 0;
  const double compute =
      dequantize * costs.unit + costs.product * work.terms + costs.per_stage / config.units / ctas;
  const double each = work.units * std::max(read, compute) + costs.per_tile / ctas;
  return costs.per_kernel + resident + static_cast<double>(work.tiles) / problem.sm_count * each;
}

}  // namespace

double estimate_gemm(const GemmConfig& config, const codegen::GpuCosts& costs) {
  const GemmProblem& problem = config.problem;
  if (config.is_skinny()) {
    return problem.overlapping > 0
               ? estimate_skinny_overlapped(problem, config, costs.overlapped_skinny_gemm)
               : estimate_skinny(problem, config, costs.skinny_gemm);
  }
  return problem.overlapping > 0
             ? estimate_overlapped(problem, config, costs.overlapped_gemm, costs.gemm.dequantize)
             : estimate_waiting(problem, config, costs.gemm);
}

}  // namespace tenon::kernels
