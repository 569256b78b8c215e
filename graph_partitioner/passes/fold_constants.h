// Nodes whose result is known now become constants.
//
// Why: exporters write shapes, masks and scales as chains of tiny ops over constants; matching must
// see numbers. Why here: after shapes are inferred (Shape of fixed dims folds), before normalising;
// again after decomposing, which writes scalar arithmetic.
//
// Small results only (kMaxFoldedBytes): a folded weight would exist twice. What stands behind
// codes, scales and zero points folds whatever its size, because kernels take those as constants: a
// limit must not decide what is claimed. So do positions of fixed sizes behind indices: a Resize
// computes its own. Dequantisation is never folded: weights stay in their
// blocks. A graph output keeps its producer.
#pragma once

#include <cstddef>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

inline constexpr size_t kMaxFoldedBytes = size_t{1} << 20;

void fold_constants(ir::Graph& graph);

}  // namespace tenon
