#include "kernels/planning/roofline.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/host_costs.h"
#include "kernels/planning/number_reader.h"

namespace tenon::kernels {
namespace {

// The rows stand in one symbol: of b*s the last one.
std::string row_symbol(const Dim& rows) {
  std::vector<std::string> symbols;
  rows.collect_symbols(symbols);
  return symbols.empty() ? "" : symbols.back();
}

int64_t bytes_of(const ir::Graph& graph, const ir::Node& node, const Dim::Lookup& sizes) {
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
  return static_cast<int64_t>(bytes);
}

void estimate(const RooflineProblem& problem, const Settings& settings, PlannedKernel& kernel) {
  if (!settings.gpu) {
    const double rate = codegen::kHostCosts.bytes * settings.host.threads;
    kernel.microseconds = static_cast<double>(problem.bytes) / rate;
    return;
  }
  kernel.microseconds = estimate_roofline(problem, codegen::costs_of(*settings.gpu));
  kernel.problem = problem.numbers();
}

}  // namespace

ProblemNumbers RooflineProblem::numbers() const {
  return {{"bytes", bytes},
          {"row_bytes", row_bytes},
          {"rows", rows},
          {"flops", flops},
          {"sm_count", sm_count}};
}

std::optional<RooflineProblem> RooflineProblem::from(const ProblemNumbers& numbers) {
  constexpr int64_t kMostBytes = int64_t{1} << 48, kMostRows = int64_t{1} << 31,
                    kMostFlops = int64_t{1} << 60;
  NumberReader reader(numbers);
  RooflineProblem problem;
  problem.bytes = reader.read("bytes", 0, kMostBytes);
  problem.row_bytes = reader.read("row_bytes", -kMostRows, kMostRows);
  problem.rows = reader.read("rows", 1, kMostRows);
  problem.flops = reader.read_newer("flops", kMostFlops);
  problem.sm_count = reader.read_int("sm_count", 1, 1 << 16);
  if (!reader.ok()) return std::nullopt;
  return problem;
}

Support RooflineProblem::move_to(int64_t other_rows) {
  if (other_rows == rows) return Support::yes();
  if (flops > 0) return Support::no("how many operations other rows take is not known");
  bytes += row_bytes * (other_rows - rows);
  rows = other_rows;
  return Support::yes();
}

double estimate_roofline(const RooflineProblem& problem, const codegen::GpuCosts& costs) {
  const codegen::RooflineCosts& roofline = costs.roofline;
  const double memory = static_cast<double>(problem.bytes) / roofline.bytes;
  const double products = static_cast<double>(problem.flops) / costs.attention.flops;
  return roofline.per_kernel + std::max(memory, products) / problem.sm_count;
}

void add_roofline(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  Plan& plan) {
  const std::string symbol = row_symbol(plan.rows);
  for (RangePlan& range : plan.ranges) {
    const int64_t rows = range.rows.last == RowRange::kNoLimit ? range.rows.first : range.rows.last;
    const auto sizes_at = [&](int64_t counted) {
      return [&symbol, counted](std::string_view name) -> int64_t {
        return name == symbol ? std::max<int64_t>(counted, 1) : 1;
      };
    };
    const auto bytes_at = [&](int64_t counted) { return bytes_of(graph, node, sizes_at(counted)); };
    for (PlannedKernel& kernel : range.kernels) {
      if (kernel.microseconds > 0) continue;
      try {
        const int64_t bytes = bytes_at(rows);
        estimate({.bytes = bytes,
                  .row_bytes = symbol.empty() ? 0 : bytes_at(rows + 1) - bytes,
                  .rows = std::max<int64_t>(rows, 1),
                  .flops = std::max<int64_t>(kernel.flops.evaluate(sizes_at(rows)), 0),
                  .sm_count = settings.gpu ? settings.gpu->sm_count : 1},
                 settings, kernel);
      } catch (const UserError&) {
        // Sizes that no Run can have: nobody knows.
      }
    }
  }
}

}  // namespace tenon::kernels
