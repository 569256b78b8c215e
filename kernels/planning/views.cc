#include "kernels/planning/views.h"

#include <algorithm>

namespace tenon::kernels {

bool is_view(const ir::Node& node) { return node.is("Reshape") || node.is("tenon::Bitcast"); }

bool caller_brings(const ir::Graph& graph, ir::ValueId id) {
  for (const ir::Node* made = graph.producer(id); made != nullptr; made = graph.producer(id)) {
    if (!is_view(*made)) return false;
    id = made->input(0);
  }
  return std::ranges::count(graph.inputs(), id) > 0;
}

}  // namespace tenon::kernels
