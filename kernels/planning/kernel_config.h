// How a kernel is cut, in numbers: a report prints them, a tuner compares and keeps them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/shape.h"

namespace tenon::kernels {

// Rows of a product, queries of an attention. Both ends belong to it.
struct RowRange {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  int64_t first = 0, last = kNoLimit;

  bool is_all() const { return first <= 0 && last == kNoLimit; }
  bool is_empty() const { return first > last; }
  bool covers(const RowRange& other) const { return first <= other.first && other.last <= last; }
  RowRange common_with(const RowRange& other) const {
    return {std::max(first, other.first), std::min(last, other.last)};
  }
  // 1 where `rows` are in the range, else 0: what tasks are multiplied with.
  Dim contains(const Dim& rows) const;
  std::string text(std::string_view what) const;  // "rows <= 8", "4 rows", "rows > 16"
  bool operator==(const RowRange&) const = default;
};

// The code that a kernel is made of.
enum class Skeleton : uint8_t {
  kLoop,
  kGemm,          // TMA or asynchronous copies that run ahead, weights dequantised in registers
  kSkinnyGemm,    // the same for few rows: the warps of a CTA split K
  kMma,           // matrix instructions over operands in shared memory
  kHostGemm,      // panels of weights by vectors of f32, on the host
  kHostGemv,      // one row
  kHostGemmInt8,  // products of bytes
  kHostGemvInt8,
  kHostGemmTiles,  // AMX
  kFlash,
  kFlashDecode,
  kFlashPrefill,
  kDequantizeKv,  // a launch before the attention
  kPagedAttention,
  kHostAttention,
  kLibrary,  // a call of a library
};
std::string_view name(Skeleton skeleton);
std::optional<Skeleton> find_skeleton(std::string_view name);

// What a skeleton is cut by.
enum class Knob : uint8_t {
  kTileM,
  kTileN,
  kKPerStage,
  kStages,
  kSplitK,
  kWarpSplitK,
  kResidentX,
  kCtasPerSm,
  kSplitKv,  // 0: by the length of the cache
  kWarps,
  kKvPerStage,
  kKvCodes,       // the KV cache is dequantised in registers
  kEngine,        // of a library: its place in the library's list
  kEngineNumber,  // and the library's own number for it
};
std::string_view name(Knob knob);
std::optional<Knob> find_knob(std::string_view name);

struct KernelConfig {
  Skeleton skeleton{};
  std::vector<std::pair<Knob, int64_t>> knobs = {};  // in the order in which they are told

  std::optional<int64_t> find(Knob knob) const;
  std::string text() const;  // "tile 128x32, K/stage 256, 4 stages, split-K 2, 1 CTA/SM"
  bool operator==(const KernelConfig&) const = default;
};

// What an estimate was made from, besides the config: the log of a tuner keeps it, and a fit of the
// costs estimates again from there. Names are literals.
using ProblemNumbers = std::vector<std::pair<std::string_view, int64_t>>;

// One way to run a range of rows.
struct PlannedKernel {
  KernelConfig config;
  // Expected at the most rows of its range, at the fewest where that has no end; 0: nobody knows.
  double microseconds = 0;
  Dim workspace_bytes = 0;      // scratch and counters
  ProblemNumbers problem = {};  // empty: nobody estimates it
  Dim flops = 0;                // of attention, where the roofline of bytes alone would be too low

  std::string text() const;  // with "13.8 us expected"
};

}  // namespace tenon::kernels
