// What can be evaluated at Run: sizes over symbols that the inputs of a graph name, in their shapes
// or as elements of small integer tensors.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

class InputSymbols {
 public:
  explicit InputSymbols(const Graph& graph);

  void add(const std::vector<Dim>& sizes);
  bool tell(const Dim& size) const;
  bool tell(const std::vector<Dim>& sizes) const;

 private:
  std::set<std::string> names_;
};

}  // namespace tenon::ir
