// The weight of a product with its scales, zero points and stored forms, cut for one rank.
#pragma once

#include "base/support.h"
#include "distributed/sharding/cut.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

struct WeightSize {
  int64_t n = 0, k = 0;
};

// No: the product is not one of rows with a constant matrix, and says why.
Support has_weight(const ir::Graph& graph, const ir::Node& node);
// Of a product that has one.
WeightSize weight_size(const ir::Graph& graph, const ir::ScaledDot& dot);
// Where K lies in `a`.
size_t k_axis(const ir::Graph& graph, const ir::ScaledDot& dot);

Support can_cut_columns(const ir::Graph& graph, const ir::ScaledDot& dot);
Support can_cut_rows(const ir::Graph& graph, const ir::ScaledDot& dot, const Shares& k);

// Elements of K per scale so that every share has whole blocks: the weight's own, or a divisor with
// scales repeated. 0: the weight has no blocks.
int64_t block_for(const ir::Graph& graph, const ir::ScaledDot& dot, const Shares& k);

// Constants of a product's right side after a cut, in the order b, scale, zero point; null where
// there is none or it stays whole.
struct WeightPart {
  ir::TensorPtr b, scale, zero_point;
};
WeightPart columns_of(const ir::Graph& graph, const ir::ScaledDot& dot, const Pieces& n);
WeightPart rows_of(const ir::Graph& graph, const ir::ScaledDot& dot, const Pieces& k,
                   int64_t block);

}  // namespace tenon::distributed
