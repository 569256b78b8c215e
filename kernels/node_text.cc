#include "kernels/node_text.h"

#include <fmt/format.h>

namespace tenon::kernels {

std::string display_name(const ir::Graph& graph, const ir::Node& node) {
  if (!node.name.empty()) return node.name;
  for (ir::ValueId output : node.outputs) {
    if (output != ir::kNoValue) return graph.value(output).name;
  }
  return node.op;
}

std::string problem_text(const ir::Graph& graph, const ir::Node& node) {
  const auto list = [&](const std::vector<ir::ValueId>& values) {
    std::string joined;
    for (ir::ValueId id : values) {
      if (!joined.empty()) joined += ", ";
      if (id == ir::kNoValue) {
        joined += "-";
        continue;
      }
      const ir::Value& value = graph.value(id);
      joined += fmt::format("{}{}", name(value.dtype), value.shape ? text(*value.shape) : "[?]");
    }
    return joined;
  };
  return fmt::format("({}) -> ({})", list(node.inputs), list(node.outputs));
}

}  // namespace tenon::kernels
