// A pooling with few taps as arithmetic of slices, one for each tap, which fuses into one loop:
//
//   MaxPool 1x2, strides 1x2   =>   Max(x[:, :, 0::2, :], x[:, :, 1::2, :])
//
// For channels that are stored last, where cuDNN has no engine (asked: 9.19) and neighbouring
// threads read neighbouring channels. A window over all pixels is a reduction.
#pragma once

#include "graph_partitioner/passes/decompose/emitter.h"

namespace tenon {

// x and the result, of shape `y`, have their channels last. kNoValue: it is not such a pooling.
ir::ValueId pool_by_slices(decomposition::Emitter& emit, const ir::Node& node, ir::ValueId x,
                           const Shape& y);

}  // namespace tenon
