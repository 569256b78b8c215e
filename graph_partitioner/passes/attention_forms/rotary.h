// Rotary embedding written out: pairs of a head's elements turned by an angle per position.
//
//   x ──┬── first half  x1 ──┐   real = cos * x1 - sin * x2
//       ├── second half x2 ──┼── imag = sin * x1 + cos * x2 ── Concat ── y
//       └── rest ────────────┘
//
// Interleaved, the pairs are neighbours: the same on the view [..., d/2, 2].
#pragma once

#include <optional>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

// A RotaryEmbedding of either domain that we know, as it is called.
struct RotaryCall {
  ir::ValueId x = ir::kNoValue;  // [B, S, H * D] or [B, H, S, D]
  ir::ValueId cos = ir::kNoValue, sin = ir::kNoValue;
  ir::ValueId positions = ir::kNoValue;  // kNoValue: cos has a row for each token
  int64_t heads = 0, width = 0;
  bool interleaved = false;
};
std::optional<RotaryCall> read_rotary(const Rewrite& r, const ir::Node& node);
// Positions [B or 1, S]; one number is the first of S positions.
ir::ValueId spread_positions(Rewrite& r, ir::ValueId positions, const Dim& sequence);

struct Rotation {
  ir::ValueId cos = ir::kNoValue, sin = ir::kNoValue;  // [B or 1, S, width / 2]
  int64_t width = 0;                                   // rotated elements of each head
  bool interleaved = false;
};

// Rows of [positions, width / 2] tables picked by [B or 1, S] positions.
Rotation rotation_at(Rewrite& r, ir::ValueId cos_table, ir::ValueId sin_table,
                     ir::ValueId positions, int64_t width, bool interleaved);

// x: [B, S, H, D], or [B, H, S, D] with heads_first.
ir::ValueId rotate(Rewrite& r, ir::ValueId x, const Rotation& rotation, bool heads_first);

}  // namespace tenon::attention_forms
