#include "provider/cost_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/arch_spec.h"
#include "kernels/cost_fit/extrapolation.h"

namespace tenon::provider {
namespace {

using Json = nlohmann::ordered_json;

// Where the times were measured that configs are ranked by. A GPU that is absent is named by its
// architecture alone.
std::string cost_model_text(const codegen::ArchSpec& spec, bool gpu_is_here) {
  const codegen::CostSource& source = spec.costs->source;
  if (!spec.has_measured_costs()) return fmt::format("not measured: constants of {}", source.arch);
  return fmt::format("measured on {}", gpu_is_here ? source.card : source.arch);
}

}  // namespace

Json cost_model_json(const device::Description& gpu, bool gpu_is_here,
                     const std::optional<uint64_t>& seed) {
  const codegen::ArchSpec& spec = codegen::arch_spec(gpu.arch);
  codegen::GpuTarget target = gpu.target();
  target.cost_seed = seed;
  const codegen::RooflineCosts& costs = codegen::costs_of(target).roofline;
  Json told = {{"cost_model", cost_model_text(spec, gpu_is_here)},
               {"cost_model_date", spec.costs->source.date},
               {"extrapolates", kernels::extrapolated_machine(spec.costs->source, gpu)},
               {"kernel_us", costs.per_kernel},
               {"memory_bytes_per_us", costs.bytes * gpu.sm_count}};
  if (seed) told["cost_factors"] = *seed;
  return told;
}

std::string extrapolation_text(const kernels::FusionReport& fusion,
                               const device::Description& gpu) {
  const bool by_records =
      !fusion.tuning.empty() && std::ranges::all_of(fusion.tuning, &kernels::TuningNote::used);
  if (by_records) return "";
  const codegen::CostSource& source = codegen::arch_spec(gpu.arch).costs->source;
  for (const kernels::ConfigChoice& config : fusion.configs) {
    std::string text = kernels::extrapolated_sizes(source, config.chosen.problem);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace tenon::provider
