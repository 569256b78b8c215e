#include <fmt/format.h>

#include "kernels/cost_fit/fit_costs.h"

namespace tenon::kernels {
namespace {

// "overlapped_gemm.unit[2]" is number 2 of `unit` of `overlapped_gemm`.
struct CostName {
  std::string part, field;
  bool is_first = true;  // of its array
  bool is_element = false;

  explicit CostName(std::string_view name) {
    if (const size_t dot = name.find('.'); dot != std::string_view::npos) {
      part = name.substr(0, dot);
      name.remove_prefix(dot + 1);
    }
    const size_t bracket = name.find('[');
    is_element = bracket != std::string_view::npos;
    is_first = !is_element || name.substr(bracket) == "[0]";
    field = name.substr(0, bracket);
  }
};

std::string source_text(const codegen::CostSource& source) {
  return fmt::format(
      "    .source = {{.arch = \"{}\", .card = \"{}\", .date = \"{}\", .scaled_by = \"{}\",\n"
      "               .sm_count = {}, .clock_mhz = {},\n"
      "               .least_k = {}, .most_k = {}, .most_rows = {}}},\n",
      source.arch, source.card, source.date, source.scaled_by, source.sm_count, source.clock_mhz,
      source.least_k, source.most_k, source.most_rows);
}

}  // namespace

std::string table_text(const codegen::GpuCosts& costs) {
  std::string text = source_text(costs.source);
  std::string part;  // that is open
  bool in_array = false;
  codegen::GpuCosts copy = costs;
  visit_costs(copy, [&](std::string_view full, double& value) {
    const CostName name(full);
    if (in_array && (!name.is_element || name.is_first)) {
      text += "}";
      in_array = false;
    }
    if (name.part != part) {
      if (!part.empty()) text += "},\n";
      if (!name.part.empty()) text += fmt::format("    .{} = {{", name.part);
    } else if (!part.empty()) {
      text += name.is_first ? ",\n        " : ", ";
    }
    if (name.is_first) text += fmt::format("{}.{} = ", name.part.empty() ? "    " : "", name.field);
    if (name.is_element && name.is_first) {
      text += "{";
      in_array = true;
    }
    text += fmt::format("{}", value);
    if (name.part.empty()) text += ",\n";
    part = name.part;
  });
  return text;
}

}  // namespace tenon::kernels
