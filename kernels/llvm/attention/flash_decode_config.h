// How the flash-decoding kernel cuts its work.
#pragma once

#include <vector>

#include "codegen/target.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

struct FlashDecodeConfig {
  static constexpr int kRows = 16;     // of the matrix instruction
  static constexpr int kBankRows = 8;  // of which a warp reads words at once

  int warps, warp_keys, stages;
  int ctas_per_sm;
  int columns = 64;                    // of a TMA box
  int key_boxes = 1, value_boxes = 1;  // that a head is fetched in
  // Where the cache has codes a box holds so many for each column, and a product takes the codes
  // with one number among them: boxes are counted by products.
  int codes = 1;
  int kept_rows = kRows;  // queries x heads that there are at most
  // CTAs that registers are saved for, so that the next launch's come in by PDL; 0: none.
  int resident_ctas = 0;

  int keys() const { return warps * warp_keys; }  // of a stage
  int rows() const { return warps * kRows; }      // of all warps
  int threads() const { return warps * 32; }
  int words() const { return columns / 2; }  // of a row of a box
  int merged_boxes() const;                  // of values that warps bring together at once
  int64_t merged_elements() const { return int64_t{merged_boxes()} * warps * kept_rows * columns; }
  int64_t shared_bytes() const;
  // Parts that the keys of each head are cut into: about one CTA for each place that there is.
  Dim split_kv(const AttentionProblem& problem, int sm_count) const;
  // 1 where that leaves each head another place, else 0.
  Dim spare_ctas(const AttentionProblem& problem, int sm_count) const;
  // `columns` floats of each row and head, for `count` parts that are merged.
  Dim partial_bytes(const AttentionProblem& problem, const Dim& count, int64_t columns) const;
  PlannedKernel planned(const AttentionProblem& problem, const codegen::GpuTarget& gpu) const;

 private:
  Dim places(const AttentionProblem& problem, int sm_count) const;  // of a head's CTAs
};

// Whether the kernel takes codes from the cache as they are; else they are dequantised before it.
Support reads_codes(const AttentionProblem& problem);

// Those that fit, the most promising first.
std::vector<FlashDecodeConfig> rank_flash_decode_configs(const AttentionProblem& problem,
                                                         int64_t queries,
                                                         const codegen::GpuTarget& gpu);

}  // namespace tenon::kernels
