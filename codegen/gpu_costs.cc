#include "codegen/gpu_costs.h"

#include <fmt/format.h>

namespace tenon::codegen {
namespace {

using Visit = std::function<void(std::string_view, double&)>;

template <size_t kCount>
void visit_each(const Visit& visit, std::string_view name, std::array<double, kCount>& values) {
  for (size_t i = 0; i < kCount; ++i) visit(fmt::format("{}[{}]", name, i), values[i]);
}

void visit_gemm(GemmCosts& costs, const Visit& visit) {
  visit("gemm.bytes", costs.bytes);
  visit("gemm.dequantize", costs.dequantize);
  visit("gemm.product", costs.product);
  visit_each(visit, "gemm.dequantize_for_few", costs.dequantize_for_few);
  visit("gemm.dequantize_per_token", costs.dequantize_per_token);
  visit("gemm.per_tile", costs.per_tile);
  visit("gemm.per_kernel", costs.per_kernel);
  visit("gemm.per_stage", costs.per_stage);
  visit("gemm.meet", costs.meet);
  visit("gemm.pass_partial_sums", costs.pass_partial_sums);
}

void visit_skinny(SkinnyGemmCosts& costs, const Visit& visit) {
  visit("skinny_gemm.bytes", costs.bytes);
  visit("skinny_gemm.cached_bytes", costs.cached_bytes);
  visit("skinny_gemm.latency", costs.latency);
  visit_each(visit, "skinny_gemm.dequantize", costs.dequantize);
  visit("skinny_gemm.times_scaling_weights", costs.times_scaling_weights);
  visit("skinny_gemm.product", costs.product);
  visit("skinny_gemm.late_stage", costs.late_stage);
  visit("skinny_gemm.make_resident", costs.make_resident);
  visit("skinny_gemm.per_tile", costs.per_tile);
  visit("skinny_gemm.per_kernel", costs.per_kernel);
  visit("skinny_gemm.per_stage", costs.per_stage);
  visit("skinny_gemm.first_stage", costs.first_stage);
  visit("skinny_gemm.starved", costs.starved);
}

void visit_overlapped(OverlappedGemmCosts& costs, const Visit& visit) {
  visit("overlapped_gemm.bytes", costs.bytes);
  visit_each(visit, "overlapped_gemm.unit", costs.unit);
  visit_each(visit, "overlapped_gemm.unit_of_two", costs.unit_of_two);
  visit("overlapped_gemm.per_tile", costs.per_tile);
  visit("overlapped_gemm.per_tile_token", costs.per_tile_token);
  visit("overlapped_gemm.per_kernel", costs.per_kernel);
  visit("overlapped_gemm.per_stage", costs.per_stage);
  visit("overlapped_gemm.meet", costs.meet);
  visit("overlapped_gemm.pass_partial_sums", costs.pass_partial_sums);
  visit("overlapped_gemm.pass_per_split", costs.pass_per_split);
  visit("overlapped_gemm.launches_at_once", costs.launches_at_once);
  visit("overlapped_gemm.begin_alone", costs.begin_alone);
}

void visit_overlapped_skinny(OverlappedSkinnyGemmCosts& costs, const Visit& visit) {
  visit("overlapped_skinny_gemm.bytes", costs.bytes);
  visit("overlapped_skinny_gemm.bytes_per_block", costs.bytes_per_block);
  visit("overlapped_skinny_gemm.cached_bytes", costs.cached_bytes);
  visit("overlapped_skinny_gemm.latency", costs.latency);
  visit("overlapped_skinny_gemm.unit", costs.unit);
  visit("overlapped_skinny_gemm.product", costs.product);
  visit("overlapped_skinny_gemm.times_scaling_accumulators", costs.times_scaling_accumulators);
  visit("overlapped_skinny_gemm.per_tile", costs.per_tile);
  visit("overlapped_skinny_gemm.per_kernel", costs.per_kernel);
  visit("overlapped_skinny_gemm.per_stage", costs.per_stage);
  visit("overlapped_skinny_gemm.resident_twice", costs.resident_twice);
}

}  // namespace

void visit_costs(GpuCosts& costs, const Visit& visit) {
  visit_gemm(costs.gemm, visit);
  visit_skinny(costs.skinny_gemm, visit);
  visit_overlapped(costs.overlapped_gemm, visit);
  visit_overlapped_skinny(costs.overlapped_skinny_gemm, visit);
  visit("roofline.bytes", costs.roofline.bytes);
  visit("roofline.per_kernel", costs.roofline.per_kernel);
  visit("attention.flops", costs.attention.flops);
  visit("attention.library_flops", costs.attention.library_flops);
  visit("most_bytes_beside_others", costs.most_bytes_beside_others);
  visit("bytes_fetched_before", costs.bytes_fetched_before);
  visit("long_cache_keys", costs.long_cache_keys);
}

}  // namespace tenon::codegen
