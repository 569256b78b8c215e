#include "graph_partitioner/passes/normalize.h"

#include <array>

#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon {

void normalize(ir::Graph& graph) {
  const auto families = std::to_array<std::span<const NamedRewrite>>({
      normalization::view_rules(),
      normalization::reduction_rules(),
      normalization::opset_rules(),
      normalization::quantizer_rules(),
      normalization::einsum_rules(),
      normalization::transposed_convolution_rules(),
  });
  // One spelling may lead to another (a com.microsoft op to an ONNX op of an older form).
  constexpr int kMostRounds = 8;
  for (int round = 0; round < kMostRounds && apply_rules(graph, families); ++round) {
  }
}

}  // namespace tenon
