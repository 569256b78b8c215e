// Operands without a shape get the one that the operator's definition and attributes fix.
//
// Why: exporters declare scales and norm weights of attention without a rank, and no kernel takes
// an operand of unknown rank. Why here: behind infer_shapes, which knows the query's shape. Where
// such an operand is an input of the partition, Run holds the caller to the shape.
//
//   GroupQueryAttention  seqlens_k [batch], position_ids [batch, tokens], head_sink [heads],
//                        q_norm_weight and k_norm_weight [head size], past_key and past_value
//                        [batch, kv heads, any, head size], k_scale and v_scale [1] (PER_TENSOR) or
//                        [1, kv heads, 1, head size] (PER_CHANNEL)
//   PagedAttention       head_sink, q_norm_weight, k_norm_weight the same, k_scale and v_scale [1]
//                        or [kv heads, 1, head size]
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon {

void complete_shapes(ir::Graph& graph);

}  // namespace tenon
