#include "graph_partitioner/ir/input_symbols.h"

#include <algorithm>

namespace tenon::ir {

InputSymbols::InputSymbols(const Graph& graph) {
  for (const ValueId id : graph.inputs()) {
    for (const auto* sizes : {&graph.value(id).shape, &graph.value(id).elements}) {
      if (*sizes) add(**sizes);
    }
  }
}

void InputSymbols::add(const std::vector<Dim>& sizes) {
  std::vector<std::string> names;
  for (const Dim& size : sizes) size.collect_symbols(names);
  names_.insert(names.begin(), names.end());
}

bool InputSymbols::tell(const Dim& size) const {
  std::vector<std::string> names;
  size.collect_symbols(names);
  return std::ranges::all_of(names, [&](const std::string& name) { return names_.contains(name); });
}

bool InputSymbols::tell(const std::vector<Dim>& sizes) const {
  return std::ranges::all_of(sizes, [&](const Dim& size) { return tell(size); });
}

}  // namespace tenon::ir
