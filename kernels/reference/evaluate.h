// Read first: evaluates a graph node by node in float64. Plain and slow on purpose: this is what
// every kernel and every pass is judged by. Linked into tests only.
#pragma once

#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/op.h"
#include "kernels/reference/tensor.h"

namespace tenon::kernels::reference {

struct EvaluateOptions {
  // Round every value to its own type, as a chain of separate float32 kernels would. The distance
  // to the unrounded result tells how much rounding noise a graph has.
  bool round_values = false;
  // Sizes of symbols that no input's shape tells.
  Symbols symbols;
};

// `inputs` pair with graph.inputs(). An overridable input may be left out at the end: its default
// is taken. Throws UserError for an op that the reference does not know, and InternalError when a
// result's shape is not the one that the graph declares.
std::vector<ReferenceTensor> evaluate(const ir::Graph& graph,
                                      const std::vector<ReferenceTensor>& inputs,
                                      const EvaluateOptions& options = {});

bool is_known(std::string_view op);

}  // namespace tenon::kernels::reference
