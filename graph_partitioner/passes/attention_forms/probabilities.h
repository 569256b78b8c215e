// What stands between the scores and the second product, read from the product down:
//
//   scores ── Softmax(-1) ──[NaN to 0]──[Cast]── p
//
//   sinks:  Concat(scores, sink of each head) ──[less its maximum]──[Cast]── Softmax ── Slice ── p
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::attention_forms {

struct Probabilities {
  ir::ValueId scores = ir::kNoValue;
  ir::ValueId sinks = ir::kNoValue;  // [1, H, 1, 1]; kNoValue: none
  std::vector<int> sources;
};

// Nothing on the way is read by anybody else.
std::optional<Probabilities> trace_probabilities(const ir::Graph& graph, ir::ValueId value);

}  // namespace tenon::attention_forms
