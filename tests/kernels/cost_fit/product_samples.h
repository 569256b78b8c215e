// Products whose plans are looked at; nothing of them runs.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/cost_fit/measured_plan.h"
#include "kernels/device/description.h"
#include "kernels/selector.h"

namespace tenon::kernels {

// Of nvfp4. Constants of a text are zeros, which is all that plans ask.
inline ir::Graph product(int64_t n, int64_t k, const std::string& rows = "rows") {
  return ir::parse(fmt::format(R"(graph g {{
    input %x: f16[{2},{1}]
    const %w: f4e2m1[{0},{1}] = sha256:00 bytes:{3}
    const %s: f8e4m3fn[{0},{4}] = sha256:01 bytes:{5}
    %y: f16[{2},{0}] = tenon::ScaledDot(%x, %w, _, _, %s) {{b_k_last=1, block_b=16, alpha=0.5, result="f16"}} name="dot"
    output %y
  }})",
                               n, k, rows, n * k / 2, k / 16, n * k / 16));
}

// `overlaps`: it waits for no launch before it.
inline Settings settings_of(const std::string& arch, bool overlaps, int told = 4) {
  Settings settings;
  settings.gpu = device::named_description(arch).target();
  settings.tuning.neighbours = overlaps;
  settings.tuning.reads_inputs_before_wait = overlaps;
  settings.tuning.told = told;
  return settings;
}

inline Choice choice_of(const ir::Graph& graph, const Settings& settings) {
  return select(graph, graph.node(graph.order().front()), settings);
}

// As a tuner's log tells a plan.
inline PlanLine logged(const PlannedKernel& kernel, int64_t group, double microseconds) {
  PlanLine plan{.group = group,
                .skeleton = std::string(name(kernel.config.skeleton)),
                .knobs = {},
                .problem = {},
                .at_rows = 0,
                .microseconds = microseconds};
  for (const auto& [knob, value] : kernel.config.knobs) plan.knobs.emplace_back(name(knob), value);
  for (const auto& [name, value] : kernel.problem) plan.problem.emplace_back(name, value);
  return plan;
}

}  // namespace tenon::kernels
