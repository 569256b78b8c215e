// Rotary embedding in front of a query or key, as an op or as exporters spell it:
//
//   x ──┬──────────────────────────────── Mul cos ──┐
//       ├── Slice first ──┐                          Add ── y
//       └── Slice second ── Neg ── Concat ── Mul sin ┘
//
// with cos and sin of the same angle in both halves, and around it, where only a part of each head
// is turned, Concat(that of Slice(x), rest of x).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

struct TracedRotation {
  ir::ValueId x = ir::kNoValue;  // before it is turned
  std::string layout;            // of x
  // As given: cos and sin of a spelled one are twice as wide and broadcast with x.
  ir::ValueId cos = ir::kNoValue, sin = ir::kNoValue, positions = ir::kNoValue;
  int64_t width = 0;  // elements of a head that are turned
  int64_t heads = 0;  // of x, where its shape does not say
  bool interleaved = false, spelled = false;
  std::vector<int> sources;

  bool same_angles(const TracedRotation& other) const;
};

// `layout` is that of `value`, as of tenon::Attention. Nobody else reads what dissolves.
std::optional<TracedRotation> trace_rotation(const Rewrite& r, ir::ValueId value,
                                             const std::string& layout);

// cos or sin of a spelled rotation as [B or 1, S, width / 2]; nullopt where halves may differ.
std::optional<ir::ValueId> token_angles(Rewrite& r, ir::ValueId angles,
                                        const TracedRotation& rotation);

}  // namespace tenon::attention_forms
