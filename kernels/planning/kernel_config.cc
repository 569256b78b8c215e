#include "kernels/planning/kernel_config.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

struct KnobInfo {
  Knob knob;
  std::string_view name;  // in reports and records
  std::string_view text;  // {}: the number
};

constexpr std::array kKnobs = {
    KnobInfo{Knob::kTileM, "tile_m", "tile {}"},
    KnobInfo{Knob::kTileN, "tile_n", "x{}"},  // behind tile_m
    KnobInfo{Knob::kKPerStage, "k_per_stage", "K/stage {}"},
    KnobInfo{Knob::kStages, "stages", "{} stages"},
    KnobInfo{Knob::kSplitK, "split_k", "split-K {}"},
    KnobInfo{Knob::kWarpSplitK, "warp_split_k", "warp split-K {}"},
    KnobInfo{Knob::kResidentX, "resident_x", "x in smem"},
    KnobInfo{Knob::kCtasPerSm, "ctas_per_sm", "{} CTA/SM"},
    KnobInfo{Knob::kSplitKv, "split_kv", "split-KV {}"},
    KnobInfo{Knob::kWarps, "warps", "{} warps"},
    KnobInfo{Knob::kKvPerStage, "kv_per_stage", "KV/stage {}"},
    KnobInfo{Knob::kKvCodes, "kv_codes", "KV dequantised in registers"},
    KnobInfo{Knob::kEngine, "engine", "choice {}"},
    KnobInfo{Knob::kEngineNumber, "engine_number", "engine {}"},
};

const KnobInfo& info(Knob knob) {
  const auto found = std::ranges::find(kKnobs, knob, &KnobInfo::knob);
  if (found == kKnobs.end()) throw InternalError("a knob without a name");
  return *found;
}

// 1 where rows <= limit, else 0.
Dim at_most(const Dim& rows, int64_t limit) {
  return max(Dim(0), min(Dim(1), Dim(limit + 1) - rows));
}

}  // namespace

Dim RowRange::contains(const Dim& rows) const {
  const Dim below = last == kNoLimit ? Dim(1) : at_most(rows, last);
  return first <= 0 ? below : below - at_most(rows, first - 1);
}

std::string RowRange::text(std::string_view what) const {
  if (is_all()) return fmt::format("all {}", what);
  if (first == last) return fmt::format("{} {}", first, what);
  if (last == kNoLimit) return fmt::format("{} > {}", what, first - 1);
  return fmt::format("{} <= {}", what, last);
}

std::string_view name(Skeleton skeleton) {
  switch (skeleton) {
    case Skeleton::kLoop:
      return "loop";
    case Skeleton::kGemm:
      return "gemm";
    case Skeleton::kSkinnyGemm:
      return "skinny_gemm";
    case Skeleton::kMma:
      return "mma";
    case Skeleton::kHostGemm:
      return "host_gemm";
    case Skeleton::kHostGemv:
      return "host_gemv";
    case Skeleton::kHostGemmInt8:
      return "host_gemm_int8";
    case Skeleton::kHostGemvInt8:
      return "host_gemv_int8";
    case Skeleton::kHostGemmTiles:
      return "host_gemm_tiles";
    case Skeleton::kFlash:
      return "flash";
    case Skeleton::kFlashDecode:
      return "flash_decode";
    case Skeleton::kFlashPrefill:
      return "flash_prefill";
    case Skeleton::kDequantizeKv:
      return "dequantize_kv";
    case Skeleton::kPagedAttention:
      return "paged_attention";
    case Skeleton::kHostAttention:
      return "host_attention";
    case Skeleton::kLibrary:
      return "library";
  }
  throw InternalError("a skeleton without a name");
}

std::optional<Skeleton> find_skeleton(std::string_view wanted) {
  for (int i = 0; i <= static_cast<int>(Skeleton::kLibrary); ++i) {
    if (name(static_cast<Skeleton>(i)) == wanted) return static_cast<Skeleton>(i);
  }
  return std::nullopt;
}

std::string_view name(Knob knob) { return info(knob).name; }

std::optional<Knob> find_knob(std::string_view wanted) {
  const auto found = std::ranges::find(kKnobs, wanted, &KnobInfo::name);
  if (found == kKnobs.end()) return std::nullopt;
  return found->knob;
}

std::optional<int64_t> KernelConfig::find(Knob knob) const {
  const auto found = std::ranges::find(knobs, knob, &std::pair<Knob, int64_t>::first);
  if (found == knobs.end()) return std::nullopt;
  return found->second;
}

std::string KernelConfig::text() const {
  std::string joined;
  for (const auto& [knob, value] : knobs) {
    if (!joined.empty() && knob != Knob::kTileN) joined += ", ";
    if (knob == Knob::kSplitKv && value == 0) {
      joined += "split-KV by cache length";
    } else {
      joined += fmt::format(fmt::runtime(info(knob).text), value);
    }
  }
  return joined.empty() ? std::string(name(skeleton)) : joined;
}

std::string PlannedKernel::text() const {
  if (microseconds <= 0) return config.text();
  return fmt::format("{}, {:.1f} us expected", config.text(), microseconds);
}

}  // namespace tenon::kernels
