// Random attentions: layouts, groups of heads, masks, windows, caches, lengths and sinks.
#pragma once

#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {

struct AttentionSizes {
  int64_t b, q, t, p;  // batch, queries, fresh keys, past keys
  int64_t of(std::string_view symbol) const;
};

// A graph of one attention over symbolic sizes; its heads have one of `depths` elements. Norm and
// rotary of new heads, which then are as many as queries, stand in all graphs or in some.
ir::Graph random_attention(unsigned seed, std::span<const int64_t> depths,
                           bool always_new_heads = false);

std::vector<ReferenceTensor> attention_inputs(const ir::Graph& graph, const AttentionSizes& sizes,
                                              std::mt19937& random);

Tolerance attention_tolerance(const ir::Graph& graph);

}  // namespace tenon::kernels
