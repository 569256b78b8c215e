#include "graph_partitioner/passes/match_scaled_dot.h"

#include <array>

#include "graph_partitioner/passes/scaled_dot_forms/forms.h"

namespace tenon {

void match_scaled_dot(ir::Graph& graph) {
  const auto families = std::to_array<std::span<const NamedRewrite>>({
      scaled_dot_forms::plain_forms(),
      scaled_dot_forms::packed_weight_forms(),
  });
  apply_rules(graph, families);
}

}  // namespace tenon
