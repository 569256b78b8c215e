// Is a partition worth claiming?
//
// A claim costs a call out of the runtime and takes its ops away from tuned kernels. It pays off
// when the partition holds one of:
// - something that no stock kernel runs: an fp4, fp8 or e8m0 tensor, a sub-byte integer, an op of
//   the trt domain or a contrib op with block-scaled weights (must be kept: nobody else can);
// - a product, an attention or a convolution (ScaledDot, Attention, Conv);
// - kFewestFusedOps or more imported ops that compute and share one loop: each op saved is a pass
//   over memory saved.
// Views, shape arithmetic, data movement and short pointwise chains alone gain nothing.
//
// Where stock kernels run on the processor that ours do, plain products of float32 or float16 are
// theirs as well, and attentions that are made of them. They gain little themselves, and more by
// what is around them: kFewestFusedOps arithmetic ops in all, each a hand-over saved. Products of
// float16 with few weights, and of weights that arrive at Run, take longer than that saves and are
// left one by one, whatever is around them.
#pragma once

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon {

inline constexpr size_t kFewestFusedOps = 4;

// Weights that arrive at Run are packed in every Run. It costs more than the product where rows are
// fewer than this, and elements are not.
inline constexpr int64_t kFewestRowsForRuntimeWeights = 32;
inline constexpr int64_t kMostRuntimeWeights = 1 << 12;
// From so many on it costs more than whatever its readers gain by knowing the result's sizes.
inline constexpr int64_t kManyRuntimeWeights = 1 << 16;
// Stock kernels multiply float16 in float16 arithmetic, less exact than ours and twice as fast, as
// long as the weights fit in a core's cache. Beyond, they wait for memory, except with one row.
inline constexpr int64_t kMostCachedF16Weights = 3 << 18;
// The same of scores: with fewer queries, keys and values are converted for little work.
inline constexpr int64_t kFewestF16Queries = 32;

// Does a fused node on the host gain anything by being ours? Only products of floats may not.
struct HostGain {
  Support support;
  bool costs_much = false;  // more than its readers gain by knowing the result's sizes
};
HostGain product_gains_on_host(const ir::Graph& fused, const ir::Node& node, bool decodes);
// Has it a cache of keys? Rows that only a Run knows are then one in all Runs but the first.
bool decodes(const ir::Graph& fused);
// A product of two 8-bit integer tensors with one scale each or one per column, which stock kernels
// multiply as integers: the product, what dequantises its operands and what quantises its result.
// Empty for other nodes.
std::vector<ir::NodeId> integer_product(const ir::Graph& imported, ir::NodeId product);
// The imported ops that such a product is made of; what is fused into it is none.
bool is_product(const ir::Node& imported);

// `cut` is the partition as it was imported, `fused` what the passes made of it. `on_host`: stock
// kernels run on the processor that ours do.
Support is_gainful(const ir::Graph& cut, const ir::Graph& fused, bool on_host);
bool only_we_can_run(const ir::Graph& cut);

}  // namespace tenon
