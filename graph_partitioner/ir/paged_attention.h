// Attention over a cache in pages, as a typed view of its node: see fusions.h.
#pragma once

#include <string_view>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

inline constexpr std::string_view kPagedAttention = "tenon::PagedAttention";

// y[t] = softmax(softcap(scale * q[t] kᵀ)) v over the keys of token t's sequence, up to its own.
//
// Tokens of all sequences stand behind each other: q is [T, H, D], k and v are [T, Hkv, D]. Token t
// belongs to sequence rows[t], where it has place positions[t]. Key j of sequence s is row
// j % size of page table[s, j / size] of the caches, [pages, size, Hkv, D]. The caches that leave
// are those that came with the new keys and values: at the tokens' own places, or at slots[t],
// counted over all pages, nowhere where that is negative.
// Token t sees keys j <= positions[t] with positions[t] - j <= left_window.
// Places and pages that there are none of are not read or written.
// Pages may hold codes of i8 or f8e4m3fn, as caches of Attention do: see fusions.h.
// Node inputs: q, k, v, key_cache, value_cache, rows, positions, table, slots, sinks, k_scale,
// v_scale.
// Node outputs: y [T, H * D], key_cache, value_cache.
struct PagedAttention {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
  ValueId key_cache = kNoValue, value_cache = kNoValue;
  ValueId rows = kNoValue, positions = kNoValue;   // i32/i64 [T]
  ValueId table = kNoValue;                        // i32/i64 [B, pages of a sequence]
  ValueId slots = kNoValue;                        // i32/i64 [T]
  ValueId sinks = kNoValue;                        // [H]
  ValueId k_scale = kNoValue, v_scale = kNoValue;  // f32: 1 or Hkv * D elements in any shape
  float scale = 0.0f;                              // 0: 1/sqrt(D)
  float softcap = 0.0f;                            // 0: none
  int64_t left_window = -1;                        // -1: unlimited

  bool has_codes() const { return k_scale != kNoValue; }  // of the caches' own type

  static PagedAttention from(const Node& node);
  void write_to(Node& node) const;
};

}  // namespace tenon::ir
