// Filters of convolutions over channels that are stored last: [k, c, r, s] of the model becomes
// [k, r, s, c].
#pragma once

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/lowered.h"

namespace tenon::cudnn {

bool differs_with_channels_last(const ir::Tensor& filter);
kernels::PackedConstant filter_with_channels_last(const ir::TensorPtr& filter);

}  // namespace tenon::cudnn
