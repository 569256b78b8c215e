// A tenon::Attention as numbers: sizes and strides of every operand.
#pragma once

#include <string>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

// Where element (b, h, s, d) of an operand lies, in elements.
struct HeadStrides {
  Dim batch, head, row, column;
  Dim offset = 0;  // of the first head
};

struct AttentionProblem {
  ir::Attention attention;
  Dim batch, queries, keys;  // keys: of k alone
  Dim past;                  // rows of past_k; 0 without one
  Dim all_keys;              // rows that a query may see: past + keys, or the cache's rows
  int64_t depth = 0, value_depth = 0;  // D of q and k, of v
  HeadStrides q, k, v, y;
  float scale = 1;
  DType mask_type = DType::kUndefined;
  Dim mask_batch, mask_head, mask_query, mask_key;  // strides; 0 where the mask repeats
  // Rotary: cos and sin have `angles` columns, in a table of `angle_rows` rows, or a row for each
  // token. Strides between batch rows, 0 where those share.
  int64_t angles = 0;
  bool has_angle_table = false;
  Dim angle_rows, angle_batch, position_batch;

  // Operands are heads among those of others.
  bool is_packed() const { return attention.q_layout.find('+') != std::string::npos; }
  // Elements of a cache's row, as its tensor has them: bytes where two codes share one.
  int64_t cache_width(int64_t head) const {
    return attention.cache_type == DType::kI4 ? head / 2 : head;
  }
  bool has_past() const { return attention.past_k != ir::kNoValue; }
  int64_t group() const { return attention.q_heads / attention.kv_heads; }
  // Of both products, as far as a causal mask leaves them: what they are expected to take depends
  // on it. Sizes of keys that queries do not tell are taken for kOpenKeys.
  Dim flops() const;
  std::string text() const;  // "12 heads of 32, queries seq, keys seq, mask"
};

struct DescribedAttention {
  Support support;
  AttentionProblem problem;
};
DescribedAttention describe_attention(const ir::Graph& graph, const ir::Node& node);

// 1 where a Run has queries, and at most so many, else 0.
Dim has_few_queries(const AttentionProblem& problem, int64_t most);

// What shapes alone do not say: that operands fit together, angles and positions are as many as
// batch rows, and a mask as large as what it masks. `mask_has_all_keys`: along the keys too, for
// kernels that cannot hide what a shorter mask does not speak of.
std::vector<SizeCheck> size_checks(const ir::Graph& graph, const AttentionProblem& problem,
                                   bool mask_has_all_keys);

// That rows have no more keys than there are, nor than angles where they tell the positions.
std::vector<IndexCheck> length_checks(const AttentionProblem& problem);
// The same before the first launch of `lowered`.
void check_lengths(const AttentionProblem& problem, Lowered& lowered);

}  // namespace tenon::kernels
