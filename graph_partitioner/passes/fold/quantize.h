// QuantizeLinear over constants, and the one rule of it that kernels share.
#pragma once

#include "graph_partitioner/ir/graph.h"

namespace tenon::folding {

// The type whose rounding the division shows: `precision`, else the operands' own.
DType division_type(const ir::Node& node, DType x, DType scale);

// Codes of type `to`; null where the shapes do not fit. The axis is not negative, a zero point may
// be absent.
ir::TensorPtr quantize(const ir::Node& node, const ir::Tensor& x, const ir::Tensor& scale,
                       const ir::Tensor* zero_point, DType to);

}  // namespace tenon::folding
