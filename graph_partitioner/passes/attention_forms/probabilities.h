// What stands between the scores and the second product, read from the product down:
//
//   scores ── Softmax(-1) ──[NaN to 0]──[Cast]──[QuantizeLinear ── DequantizeLinear ──[Cast]]── p
//
//   sinks:  Concat(scores, sink of each head) ──[less its maximum]──[Cast]── Softmax ── Slice ── p
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/ir/fusions.h"

namespace tenon::attention_forms {

struct Probabilities {
  ir::ValueId scores = ir::kNoValue;
  ir::ValueId sinks = ir::kNoValue;  // [1, H, 1, 1]; kNoValue: none
  bool is_guarded = false;           // NaN becomes 0
  float rounded_by = 0.0f;           // the scale of codes; 0: not rounded
  DType codes = DType::kF8E4M3FN;    // their type, as of tenon::Attention
  DType divided_in = DType::kF32;    // by that scale
  std::vector<int> sources;
};

// Nothing on the way is read by anybody else. `scale`: that of `value` where it holds codes.
std::optional<Probabilities> trace_probabilities(const ir::Graph& graph, ir::ValueId value,
                                                 const ir::BlockScale& scale);

}  // namespace tenon::attention_forms
