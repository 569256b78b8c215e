#include "graph_partitioner/passes/free_rows.h"

namespace tenon {

bool has_free_rows(const ir::Graph& graph, const ir::Node& node, const ir::ScaledDot& dot) {
  const auto& weight = graph.value(dot.b).shape;
  const bool flat_weight = dot.b_dims.size() == 2 || (weight && weight->size() == 2);
  const bool flat_bias = dot.bias == ir::kNoValue ||
                         (graph.value(dot.bias).shape && graph.value(dot.bias).shape->size() == 1);
  return flat_weight && flat_bias && !node.body && dot.scale_a == ir::BlockScale{} &&
         !dot.a_k_first && graph.value(dot.a).shape && !graph.value(dot.a).shape->empty();
}

}  // namespace tenon
