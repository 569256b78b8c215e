// Every attention, whether one op or the graph that exporters write, becomes one tenon::Attention.
//
//   attention_forms/unfused.cc       softmax(q kᵀ) v out of dots, scales, masks and transposes
//   attention_forms/onnx.cc          ONNX Attention-23 and -24
//   attention_forms/multi_head.cc    com.microsoft::MultiHeadAttention and com.microsoft::Attention
//   attention_forms/group_query.cc   com.microsoft::GroupQueryAttention
//   attention_forms/new_heads.cc     rotary, norms of heads and a spelled-out cache go inside
//   attention_forms/rotary.cc        RotaryEmbedding that is left, as primitives
//
// Why here: after match_scaled_dot, so that products have one spelling and the transposes beside
// them are gone; before `decompose`, which takes Softmax apart.
//
// What tenon::Attention cannot say (windowed caches, beams, key orders) stays as it was.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void match_attention(ir::Graph& graph);

}  // namespace tenon
