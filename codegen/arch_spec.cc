#include "codegen/arch_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "codegen/passes/expand_math.h"
#include "codegen/target.h"

namespace tenon::codegen {

namespace {

// ---- what the GPUs have

constexpr GpuFeatures kAmpere = {.exp2 = true, .f16_arithmetic = true};
constexpr GpuFeatures kAda = {.exp2 = true, .f16_arithmetic = true, .fp8_conversions = true};
constexpr GpuFeatures kHopper = {.exp2 = true,
                                 .f16_arithmetic = true,
                                 .bf16_arithmetic = true,
                                 .fp8_conversions = true,
                                 .stmatrix = true,
                                 .pdl = true,
                                 .tma = true,
                                 .clusters = true};

constexpr GpuFeatures with_wgmma(GpuFeatures features) {
  features.setmaxnreg = features.wgmma = true;
  return features;
}

// Of all Blackwells; those with compute capability 10 and 11 have tensor memory.
constexpr GpuFeatures blackwell(bool tensor_memory) {
  GpuFeatures features = kHopper;
  features.fp4_conversions = features.setmaxnreg = features.block_scaled_mma = true;
  features.tensor_memory = tensor_memory;
  return features;
}

// ---- what generated code uses

// Hopper's whole way, but no kernel has clusters.
constexpr GpuFeatures used_of_sm_90a() {
  GpuFeatures features = with_wgmma(kHopper);
  features.clusters = false;
  return features;
}

// sm_90 and Blackwell: instructions of single threads are used; the pipelines are those of Ampere,
// copies by all threads and mma.sync. Not used although they are there: stmatrix, PDL, TMA,
// setmaxnreg, products with scales, tensor memory.
constexpr GpuFeatures kUsedElsewhere = {
    .exp2 = true, .f16_arithmetic = true, .bf16_arithmetic = true, .fp8_conversions = true};

// ---- how much an SM has

constexpr SmLimits sm_limits(int shared_kib_per_cta, int threads) {
  const int64_t shared = int64_t{shared_kib_per_cta} << 10;
  constexpr int64_t kReservedPerCta = 1 << 10;
  return {.shared_bytes_per_cta = shared,
          .shared_bytes = shared + kReservedPerCta,
          .registers = 65536,
          .threads = threads};
}

// ---- how long things take

// All on one H200. The products that wait: seen in steps of a decoder, each kernel from the end of
// the one before to its own. Those that overlap: fitted to 40 random products with up to eight
// configs each (TENON_MEASURE=random:40, seed 3791948268, 0.14 root mean square of the logarithm).
// Those have up to 4096 rows and 8192 k, the decoder's up to 14336 k.
constexpr GpuCosts kH200 = {
    .source = {.arch = "sm_90a",
               .card = "H200",
               .date = "2026-11-15",
               .scaled_by = "",
               .sm_count = 132,
               .clock_mhz = 1980,
               .least_k = 512,
               .most_k = 14336,
               .most_rows = 4096},
    .gemm = {.bytes = 32'000,
             .dequantize = 0.1,
             .product = 0.00235,
             .dequantize_for_few = {0.165, 0.14},
             .dequantize_per_token = 0.0016,
             .per_tile = 0.8,
             .per_kernel = 2.0,
             .per_stage = 0.085,
             .meet = 1.4,
             .pass_partial_sums = 0.034},
    .skinny_gemm = {.bytes = 34'000,
                    .cached_bytes = 110'000,
                    .latency = 1.3,
                    .dequantize = {0.2, 0.12},
                    .times_scaling_weights = 1.15,
                    .product = 0.0003,
                    .late_stage = 0.025,
                    .make_resident = 0.1,
                    .per_tile = 0.2,
                    .per_kernel = 3.0,
                    .per_stage = 0.02,
                    .first_stage = 0.2,
                    .starved = 2},
    // With 256 tokens a unit took 0.74 where x was zeros; with numbers the card's power is the
    // limit, and what dequantises half as often wins.
    .overlapped_gemm = {.bytes = 28'000,
                        .unit = {0.09, 0.15, 0.19, 0.227, 0.347, 0.68},
                        .unit_of_two = {0.1, 0.145},
                        .per_tile = 0.25,
                        .per_tile_token = 0.0145,
                        .per_kernel = 1.55,
                        .per_stage = 0.033,
                        .meet = 0.5,
                        .pass_partial_sums = 0.041,
                        .pass_per_split = 0.0047,
                        .launches_at_once = 16,
                        .begin_alone = 2},
    .overlapped_skinny_gemm = {.bytes = 26'700,
                               .bytes_per_block = 31'000,
                               .cached_bytes = 50'500,
                               .latency = 1.5,
                               .unit = 0.155,
                               .product = 0.0013,
                               .times_scaling_accumulators = 0.75,
                               .per_tile = 0.42,
                               .per_kernel = 0.4,
                               .per_stage = 0.12,
                               .resident_twice = 1},
    // As of the products that wait: nobody fitted others.
    .roofline = {.bytes = 32'000, .per_kernel = 2.0},
    // Causal, 4 x 4096 tokens, 32 heads of 128 on 8: 1124 us in f16, of which 32 place keys and
    // values; cuDNN's 544 TFLOP/s in bf16 (docs/notebook.md has both).
    .attention = {.flops = 3.8e6, .library_flops = 4.12e6},
    .most_bytes_beside_others = 128 << 20,
    .bytes_fetched_before = 112 << 10,
    .long_cache_keys = 4096,
};

// Of an architecture that nobody measured: what comes from memory takes as long as the card's data
// sheet (kernels/device/specs) says against the H200's, for each SM. All else is the H200's:
// products and dequantising, although clocks and instructions differ, and what a launch costs.
constexpr GpuCosts extrapolated(const char* scaled_by, double gigabytes_per_second, int sm_count) {
  constexpr double kH200GigabytesPerSecond = 4800;
  const double times =
      gigabytes_per_second / sm_count / (kH200GigabytesPerSecond / kH200.source.sm_count);
  GpuCosts costs = kH200;
  costs.source.scaled_by = scaled_by;
  costs.gemm.bytes *= times;
  costs.skinny_gemm.bytes *= times;
  costs.overlapped_gemm.bytes *= times;
  costs.overlapped_skinny_gemm.bytes *= times;
  costs.overlapped_skinny_gemm.bytes_per_block *= times;
  costs.roofline.bytes *= times;
  return costs;
}

constexpr GpuCosts kA100 = extrapolated("NVIDIA A100-SXM4-80GB", 2039, 108);
constexpr GpuCosts kRtx3090 = extrapolated("NVIDIA GeForce RTX 3090", 936, 82);
constexpr GpuCosts kOrin = extrapolated("Jetson AGX Orin", 204.8, 16);
constexpr GpuCosts kRtx4090 = extrapolated("NVIDIA GeForce RTX 4090", 1008, 128);
constexpr GpuCosts kB200 = extrapolated("NVIDIA B200", 7700, 148);
constexpr GpuCosts kB300 = extrapolated("NVIDIA B300", 7700, 148);
constexpr GpuCosts kThor = extrapolated("Jetson AGX Thor", 273, 20);
constexpr GpuCosts kRtx5090 = extrapolated("NVIDIA GeForce RTX 5090", 1792, 170);
constexpr GpuCosts kGb10 = extrapolated("NVIDIA GB10", 273, 48);

// ---- the table

// LLVM 19 ends at sm_90a and prints a complaint for anything newer, so what it gets for Blackwell
// is sm_90; the text is then relabelled. Versions are the oldest that know the architecture. Rows
// ascend; of two with the same compute capability the later one has more.
constexpr ArchSpec kArchSpecs[] = {
    {"sm_80", "7.8", "sm_80", "+ptx78", 8, 0, true, kAmpere, kAmpere, sm_limits(163, 2048), &kA100},
    {"sm_86", "7.8", "sm_86", "+ptx78", 8, 6, false, kAmpere, kAmpere, sm_limits(99, 1536),
     &kRtx3090},
    {"sm_87", "7.8", "sm_87", "+ptx78", 8, 7, false, kAmpere, kAmpere, sm_limits(163, 1536),
     &kOrin},
    {"sm_89", "8.1", "sm_89", "+ptx81", 8, 9, false, kAda, kAda, sm_limits(99, 1536), &kRtx4090},
    {"sm_90", "8.0", "sm_90", "+ptx80", 9, 0, true, kHopper, kUsedElsewhere, sm_limits(227, 2048),
     &kH200},
    {"sm_90a", "8.0", "sm_90a", "+ptx80", 9, 0, false, with_wgmma(kHopper), used_of_sm_90a(),
     sm_limits(227, 2048), &kH200},
    {"sm_100a", "8.8", "sm_90", "+ptx80", 10, 0, false, blackwell(true), kUsedElsewhere,
     sm_limits(227, 2048), &kB200},
    {"sm_103a", "8.8", "sm_90", "+ptx80", 10, 3, false, blackwell(true), kUsedElsewhere,
     sm_limits(227, 2048), &kB300},
    {"sm_110a", "9.0", "sm_90", "+ptx80", 11, 0, false, blackwell(true), kUsedElsewhere,
     sm_limits(227, 1536), &kThor},
    {"sm_120a", "8.8", "sm_90", "+ptx80", 12, 0, false, blackwell(false), kUsedElsewhere,
     sm_limits(99, 1536), &kRtx5090},
    {"sm_121a", "8.8", "sm_90", "+ptx80", 12, 1, false, blackwell(false), kUsedElsewhere,
     sm_limits(99, 1536), &kGb10},
};

}  // namespace

std::span<const ArchSpec> arch_specs() { return kArchSpecs; }

const std::vector<std::string>& gpu_archs() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const ArchSpec& spec : kArchSpecs) names.emplace_back(spec.name);
    return names;
  }();
  return kNames;
}

const ArchSpec& arch_spec(std::string_view name) {
  for (const ArchSpec& spec : kArchSpecs) {
    if (spec.name == name) return spec;
  }
  throw UserError(fmt::format("no GPU architecture is called '{}': choose one of {}", name,
                              fmt::join(gpu_archs(), ", ")));
}

const ArchSpec& arch_spec_of_device(int compute_major, int compute_minor) {
  const ArchSpec* best = &kArchSpecs[0];
  for (const ArchSpec& spec : kArchSpecs) {
    const bool is_same = spec.compute_major == compute_major && spec.compute_minor == compute_minor;
    if (is_same || (spec.runs_later && spec.compute_major <= compute_major)) best = &spec;
  }
  return *best;
}

MathInstructions gpu_math(std::string_view arch) {
  const GpuFeatures& uses = arch_spec(arch).uses;
  return {.exp2 = uses.exp2,
          .f16 = uses.f16_arithmetic,
          .bf16 = uses.bf16_arithmetic,
          .f8e4m3fn_to_f16 = uses.fp8_conversions,
          .libm = false};
}

}  // namespace tenon::codegen
