// What an op of the reference sees, and the tables that list the ops by family.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/indexing.h"
#include "kernels/reference/tensor.h"

namespace tenon::kernels::reference {

using Symbols = std::map<std::string, int64_t, std::less<>>;
using Outputs = std::vector<ReferenceTensor>;

// One node with its operands at hand.
struct Call {
  const ir::Graph& graph;
  const ir::Node& node;
  const Symbols& symbols;
  bool round_values = false;                   // see EvaluateOptions
  std::vector<const ReferenceTensor*> inputs;  // null: left out

  bool has(size_t index) const { return index < inputs.size() && inputs[index] != nullptr; }
  const ReferenceTensor& input(size_t index) const;  // throws UserError naming the node
  // The input's elements, or the attribute of the same meaning in older opsets.
  std::optional<std::vector<int64_t>> integers(size_t input_index,
                                               std::string_view attribute) const;
  double scalar(size_t input_index, double otherwise) const;

  // The graph's own word on an output; the type falls back to that of the first input.
  DType output_type(size_t index = 0) const;
  std::optional<Dims> output_dims(size_t index = 0) const;  // nullopt: not known before the Run
  Dims required_output_dims(size_t index = 0) const;
  int64_t value_of(const Dim& dim) const;
  bool wants(size_t output) const { return node.output(output) != ir::kNoValue; }
};

struct OpEntry {
  std::string_view op;
  Outputs (*evaluate)(const Call& call);
};

std::span<const OpEntry> pointwise_ops();
std::span<const OpEntry> activation_ops();
std::span<const OpEntry> conversion_ops();
std::span<const OpEntry> reduction_ops();
std::span<const OpEntry> normalization_ops();
std::span<const OpEntry> movement_ops();
std::span<const OpEntry> scatter_ops();
std::span<const OpEntry> shape_ops();
std::span<const OpEntry> dot_ops();
std::span<const OpEntry> attention_ops();
std::span<const OpEntry> paged_attention_ops();
std::span<const OpEntry> rotary_ops();
std::span<const OpEntry> fusion_ops();
std::span<const OpEntry> window_ops();

}  // namespace tenon::kernels::reference
