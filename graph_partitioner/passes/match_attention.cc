#include "graph_partitioner/passes/match_attention.h"

#include <array>

#include "graph_partitioner/passes/attention_forms/forms.h"

namespace tenon {

void match_attention(ir::Graph& graph) {
  const auto ops = std::to_array<std::span<const NamedRewrite>>({
      attention_forms::onnx_forms(),
      attention_forms::multi_head_forms(),
      attention_forms::group_query_forms(),
      attention_forms::paged_forms(),
  });
  apply_rules(graph, ops);
  for (const auto family : {attention_forms::unfused_forms(), attention_forms::new_head_forms(),
                            attention_forms::rotary_forms()}) {
    apply_rules(graph, {&family, 1});
  }
}

}  // namespace tenon
