#include "kernels/planning/roofline.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/arch_spec.h"

namespace tenon::kernels {
namespace {

// Of one core: 50.2 GB/s by the two of a Neoverse V1, from `make bench`. Nobody measured others.
constexpr double kHostBytesPerMicrosecond = 25'000;

// The rows stand in one symbol: of b*s the last one.
std::string row_symbol(const Dim& rows) {
  std::vector<std::string> symbols;
  rows.collect_symbols(symbols);
  return symbols.empty() ? "" : symbols.back();
}

double bytes_of(const ir::Graph& graph, const ir::Node& node, const Dim::Lookup& sizes) {
  double bytes = 0;
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (const ir::ValueId id : *values) {
      if (id == ir::kNoValue || !graph.value(id).shape) continue;
      const ir::Value& value = graph.value(id);
      double elements = 1;
      for (const Dim& dim : *value.shape) elements *= static_cast<double>(dim.evaluate(sizes));
      bytes += elements * bit_width(value.dtype) / 8;
    }
  }
  return bytes;
}

double microseconds(double bytes, const Settings& settings) {
  if (!settings.gpu) return bytes / (kHostBytesPerMicrosecond * settings.host.threads);
  const codegen::GemmCosts& costs = codegen::arch_spec(settings.gpu->arch).costs->gemm;
  return costs.per_kernel + bytes / (costs.bytes * settings.gpu->sm_count);
}

}  // namespace

void add_roofline(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  Plan& plan) {
  const std::string symbol = row_symbol(plan.rows);
  for (RangePlan& range : plan.ranges) {
    const int64_t rows = range.rows.last == RowRange::kNoLimit ? range.rows.first : range.rows.last;
    const auto size = [&](std::string_view name) -> int64_t {
      return name == symbol ? std::max<int64_t>(rows, 1) : 1;
    };
    for (PlannedKernel& kernel : range.kernels) {
      if (kernel.microseconds > 0) continue;
      try {
        kernel.microseconds = microseconds(bytes_of(graph, node, size), settings);
      } catch (const UserError&) {
        // Sizes that no Run can have: nobody knows.
      }
    }
  }
}

}  // namespace tenon::kernels
