#include "kernels/node_text.h"

#include <type_traits>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::string attributes_text(const ir::Node& node) {
  constexpr size_t kLongest = 64;
  std::string joined;
  for (const auto& [name, attribute] : node.attributes) {
    std::string value = std::visit(
        [](const auto& held) -> std::string {
          if constexpr (std::is_same_v<std::decay_t<decltype(held)>, ir::TensorPtr>)
            return "…";
          else
            return fmt::format("{}", held);
        },
        attribute);
    if (value.size() > kLongest) value = "…";
    joined += fmt::format("{}{}={}", joined.empty() ? "" : ", ", name, value);
  }
  return joined.empty() ? "" : fmt::format(" {{{}}}", joined);
}

}  // namespace tenon::kernels
