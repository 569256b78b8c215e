// What the choosers of configs expect of a GPU's time. Microseconds, and bytes that one SM gets in
// a microsecond, unless it says otherwise. The values are in arch_spec.cc, with where they were
// measured; whoever measures another architecture adds a set of its own there.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

namespace tenon::codegen {

// A GEMM of packed weights that waits for the launch before it: its kernel counts from its
// beginning to its end. A unit is 128 x 64 weights; 128 x 32 of tf32 are as many bytes, and take as
// long.
struct GemmCosts {
  double bytes;
  double dequantize, product;  // a unit; a unit with one token
  // To dequantise a unit for few tokens, by one CTA of an SM and by each of two; more for each
  // token.
  std::array<double, 2> dequantize_for_few;
  double dequantize_per_token;
  double per_tile;           // to begin and store it
  double per_kernel;         // to begin it
  double per_stage;          // to wait for it
  double meet;               // at a counter, the CTAs of a split
  double pass_partial_sums;  // of one token of a split
};

// The same for skinny GEMMs, whose partial sums meet inside of a CTA.
struct SkinnyGemmCosts {
  double bytes, cached_bytes;  // from memory; from the second cache level
  double latency;              // of a copy
  // A unit where scales multiply accumulators of blocks, by one CTA of an SM and by each of two;
  // how many times that it takes where they multiply weights.
  std::array<double, 2> dequantize;
  double times_scaling_weights;
  double product;        // a unit with one token
  double late_stage;     // a unit, where tokens come with the stages: those are given back late
  double make_resident;  // x, by a CTA
  double per_tile, per_kernel, per_stage;
  double first_stage;  // all stages together
  double starved;      // of stages
};

// A GEMM that waits for nobody, so that the next one begins where this one leaves room: a kernel
// counts as long as it keeps SMs busy.
struct OverlappedGemmCosts {
  double bytes;
  std::array<double, 6> unit;         // of 8, 16, … 256 tokens
  std::array<double, 2> unit_of_two;  // by two CTAs at once: of 8 and 16 tokens
  double per_tile, per_tile_token;
  double per_kernel, per_stage, meet;
  double pass_partial_sums, pass_per_split;  // of one token
  // That find room beside each other, where there are so many that wait for none.
  double launches_at_once;
  double begin_alone;  // a kernel that fills the card once or less
};

struct OverlappedSkinnyGemmCosts {
  double bytes, bytes_per_block, cached_bytes;  // the second where accumulators are scaled
  double latency;
  double unit, product;
  double times_scaling_accumulators;  // of the time of a unit
  double per_tile, per_kernel, per_stage;
  double resident_twice;  // two CTAs keep the same tokens, where they have more than one tile each
};

// What is read and written once, where nobody knows more.
struct RooflineCosts {
  double bytes;       // of each SM
  double per_kernel;  // to begin it
};

// Attention of many queries: operations that an SM's tensor cores do in a microsecond, in a kernel
// of ours and in a library's.
struct AttentionCosts {
  double flops, library_flops;
};

// Where constants were fitted, and to what: other sizes are extrapolated.
struct CostSource {
  const char* arch;  // "sm_90a"
  const char* card;  // "H200"
  const char* date;
  // Empty, or the card of another architecture by whose memory bandwidth they were then scaled.
  const char* scaled_by;
  int sm_count, clock_mhz;
  int64_t least_k, most_k, most_rows;  // of products
};

struct GpuCosts {
  CostSource source;

  GemmCosts gemm;
  SkinnyGemmCosts skinny_gemm;
  OverlappedGemmCosts overlapped_gemm;
  OverlappedSkinnyGemmCosts overlapped_skinny_gemm;
  RooflineCosts roofline;
  AttentionCosts attention;
  // Bytes of weights so large that it is of no account what neighbours do at their beginning and
  // end.
  double most_bytes_beside_others;
  // What the CTAs of an SM fetch before their tokens come.
  double bytes_fetched_before;
  // Keys from which decode attention gains where the CTAs of the next launch find room.
  double long_cache_keys;
};

// Every constant with its name, "gemm.bytes" or "overlapped_gemm.unit[2]", in the order of the
// table.
void visit_costs(GpuCosts& costs, const std::function<void(std::string_view, double&)>& visit);

struct GpuTarget;
// What choosers go by: the table's, times the factors that a test asks for.
const GpuCosts& costs_of(const GpuTarget& gpu);

}  // namespace tenon::codegen
