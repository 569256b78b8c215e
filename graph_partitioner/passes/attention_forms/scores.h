// What stands between the first product and the softmax, read from the softmax down:
//
//   dot(q, k) ── [scale] ── [cap * tanh(x / cap)] ── [Add mask | Where(keep, x, fill)]... ── [Cast]
//
// in this order, Casts anywhere. Anything else is no attention.
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

// Scores that Where replaces by `fill`.
struct Hidden {
  ir::ValueId condition = ir::kNoValue;
  bool where_true = false;  // hidden where the condition holds, not where it fails
  double fill = 0.0;
};

struct Scores {
  ir::NodeId dot = ir::kNoNode;
  double scale = 1.0, softcap = 0.0;
  std::vector<ir::ValueId> added;
  std::vector<Hidden> hidden;
  std::vector<int> sources;
};

std::optional<Scores> trace_scores(const ir::Graph& graph, ir::ValueId value);

// One mask for tenon::Attention: bool where everything hidden is -inf and nothing is added.
ir::ValueId write_mask(Rewrite& r, const Scores& scores, DType dtype);

}  // namespace tenon::attention_forms
