// What stands between the first product and the softmax, read from the softmax down:
//
//   dot(q, k) ── [scale] ── [cap * tanh(x / cap)] ── [Add mask | Where(keep, x, fill)]... ── [Cast]
//
// in this order, Casts anywhere. Anything else is no attention.
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

// Scores that Where replaces by `fill`, as the softmax sees it (Casts between change it).
struct Hidden {
  ir::ValueId condition = ir::kNoValue;
  bool where_true = false;  // hidden where the condition holds, not where it fails
  double fill = 0.0;
  DType dtype = DType::kF32;  // of the scores there
};

// What is added to scores, and after how many of the Wheres, from the innermost.
struct Added {
  ir::ValueId mask = ir::kNoValue;
  size_t after = 0;
};

struct Scores {
  ir::NodeId dot = ir::kNoNode;
  double scale = 1.0, softcap = 0.0;
  std::vector<Added> added;
  std::vector<Hidden> hidden;  // innermost first
  std::vector<int> sources;
};

// nullopt too where no mask of tenon::Attention says the same.
std::optional<Scores> trace_scores(const ir::Graph& graph, ir::ValueId value);

// Sets the mask and its fill: bools where nothing is added, else floats.
void write_mask(Rewrite& r, const Scores& scores, ir::Attention& attention);

}  // namespace tenon::attention_forms
