// TenonFitCosts: the third exported symbol, for `tenon tune --fit`. JSON in, JSON out:
// in   {"arch": "sm_90a", "source": {"card": …, "date": …, "sm_count": …, "clock_mhz": …},
//       "plans": [{"group": 1, "skeleton": …, "knobs": {…}, "problem": {…}, "at_rows": 8,
//       "us": 9.5}]}
// out  {"plans": 17, "dropped": [{"plan": 3, "reason": …}], "before": {…}, "after": {…},
//       "constants": [{"name": …, "table": …, "fitted": …}], "kept": […], "bounded": […],
//       "table": "…"}  or  {"error": …}
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "kernels/cost_fit/fit_costs.h"

extern "C" __attribute__((visibility("default"))) int TenonFitCosts(
    const char* request, void (*answer)(const char* text));

namespace tenon::provider {
namespace {

using Json = nlohmann::ordered_json;
using kernels::MeasuredPlan;

std::vector<std::pair<std::string, int64_t>> numbers_of(const Json& object) {
  std::vector<std::pair<std::string, int64_t>> numbers;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_number_integer() && !value.is_boolean()) {
      throw UserError(fmt::format("'{}' is no whole number", name));
    }
    numbers.emplace_back(name, value.is_boolean() ? value.get<bool>() : value.get<int64_t>());
  }
  return numbers;
}

Support read_plan(const Json& written, MeasuredPlan& plan) {
  try {
    return kernels::read_plan({.group = written.at("group").get<int64_t>(),
                               .skeleton = written.at("skeleton").get<std::string>(),
                               .knobs = numbers_of(written.at("knobs")),
                               .problem = numbers_of(written.value("problem", Json::object())),
                               .at_rows = written.value("at_rows", int64_t{0}),
                               .microseconds = written.at("us").get<double>()},
                              plan);
  } catch (const Json::exception&) {
    return Support::no("a field is missing, or of another type");
  } catch (const UserError& error) {
    return Support::no(error.what());
  }
}

Json to_json(const kernels::ModelError& error) {
  return {{"plans", error.plans}, {"median", error.median}, {"p90", error.ninetieth}};
}

Json to_json(const kernels::ModelQuality& quality) {
  Json skeletons = Json::object();
  for (const auto& [name, error] : quality.by_skeleton)
    skeletons[std::string(name)] = to_json(error);
  return {{"all", to_json(quality.all)},
          {"skeletons", skeletons},
          {"groups", quality.groups},
          {"mean_regret", quality.mean_regret},
          {"worst_regret", quality.worst_regret}};
}

// Where the new constants are from, for the table that is printed.
struct SourceTexts {
  std::string arch, card, date;

  void put_into(codegen::CostSource& source, const Json& told,
                const std::vector<MeasuredPlan>& plans) {
    card = told.value("card", "");
    date = told.value("date", "");
    std::erase_if(card, [](char c) { return c == '"' || c == '\\' || c == '\n'; });
    std::erase_if(date, [](char c) { return c == '"' || c == '\\' || c == '\n'; });
    source = {.arch = arch.c_str(),
              .card = card.c_str(),
              .date = date.c_str(),
              .scaled_by = "",
              .sm_count = told.value("sm_count", 0),
              .clock_mhz = told.value("clock_mhz", 0),
              .least_k = 0,
              .most_k = 0,
              .most_rows = 0};
    for (const MeasuredPlan& plan : plans) {
      const auto* gemm = std::get_if<kernels::GemmConfig>(&plan.model);
      if (gemm == nullptr) continue;
      const kernels::GemmProblem& problem = gemm->problem;
      source.least_k = source.least_k == 0 ? problem.k : std::min(source.least_k, problem.k);
      source.most_k = std::max(source.most_k, problem.k);
      source.most_rows = std::max(source.most_rows, problem.rows);
    }
  }
};

Json constants_json(codegen::GpuCosts table, codegen::GpuCosts fitted) {
  Json constants = Json::array();
  visit_costs(table, [&](std::string_view name, double& value) {
    constants.push_back({{"name", name}, {"table", value}});
  });
  size_t i = 0;
  visit_costs(fitted, [&](std::string_view, double& value) { constants[i++]["fitted"] = value; });
  return constants;
}

Json fit(const Json& request) {
  const codegen::ArchSpec& spec = codegen::arch_spec(request.at("arch").get<std::string>());
  std::vector<MeasuredPlan> plans;
  Json dropped = Json::array();
  for (size_t i = 0; i < request.at("plans").size(); ++i) {
    MeasuredPlan plan;
    const Support answer = read_plan(request.at("plans")[i], plan);
    if (answer) {
      plans.push_back(std::move(plan));
    } else {
      dropped.push_back({{"plan", i}, {"reason", answer.reason}});
    }
  }
  kernels::CostFit made = kernels::fit_costs(*spec.costs, plans);
  SourceTexts texts{std::string(spec.name), "", ""};
  texts.put_into(made.costs.source, request.value("source", Json::object()), plans);
  return {{"plans", plans.size()},
          {"dropped", dropped},
          {"before", to_json(made.before)},
          {"after", to_json(made.after)},
          {"constants", constants_json(*spec.costs, made.costs)},
          {"kept", made.kept},
          {"bounded", made.bounded},
          {"table", kernels::table_text(made.costs)}};
}

}  // namespace
}  // namespace tenon::provider

// 0, or 1 where the answer is an error. `answer` is called once; its text lives that long.
int TenonFitCosts(const char* request, void (*answer)(const char* text)) {
  using tenon::provider::Json;
  Json told;
  try {
    told = tenon::provider::fit(Json::parse(request));
  } catch (const std::exception& error) {
    told = {{"error", error.what()}};
  }
  answer(told.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return told.contains("error") ? 1 : 0;
}
