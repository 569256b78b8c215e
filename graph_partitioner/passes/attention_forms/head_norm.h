// A norm of heads in front of a query or key, as an op or as exporters spell it:
//
//   x ──[Cast]──┬── Pow 2 ── ReduceMean ── Add epsilon ── Sqrt ── Reciprocal ──┐
//               └──────────────────────────────────────────────────────────── Mul ──[Cast]── Mul w
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

struct HeadNorm {
  ir::ValueId x = ir::kNoValue, weight = ir::kNoValue;
  float epsilon = 0;
  std::vector<int> sources;
};

// Of rows of one head each, seen through views; nobody else reads `value`.
std::optional<HeadNorm> trace_head_norm(const Rewrite& r, ir::ValueId value, int64_t head_size);

}  // namespace tenon::attention_forms
