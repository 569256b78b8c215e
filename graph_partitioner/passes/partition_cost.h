// Is a partition worth claiming?
//
// A claim costs a call out of the runtime and takes its ops away from tuned kernels. It pays off
// when the partition holds one of:
// - something that no stock kernel runs: an fp4, fp8 or e8m0 tensor, a sub-byte integer, an op of
// the
//   trt domain or a contrib op with block-scaled weights (must be kept: nobody else can);
// - a product or an attention (ScaledDot, Attention);
// - kFewestFusedOps or more imported ops that compute and share one loop: each op saved is a pass
// over
//   memory saved.
// Views, shape arithmetic, data movement and short pointwise chains alone gain nothing.
#pragma once

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon {

inline constexpr size_t kFewestFusedOps = 4;

// `cut` is the partition as it was imported, `fused` what the passes made of it.
Support is_gainful(const ir::Graph& cut, const ir::Graph& fused);
bool only_we_can_run(const ir::Graph& cut);

}  // namespace tenon
