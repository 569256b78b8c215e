// Products as plan_sections() takes them.
#pragma once

#include <span>
#include <vector>

#include "kernels/llvm/scaled_dot/dot_sections.h"

namespace tenon::kernels {

inline std::vector<DotPart> dot_parts(const ir::Graph& graph, std::span<const ir::Node> nodes) {
  std::vector<DotPart> parts;
  for (const ir::Node& node : nodes) {
    parts.push_back({node, describe_scaled_dot(graph, node).problem, {}});
  }
  return parts;
}

}  // namespace tenon::kernels
