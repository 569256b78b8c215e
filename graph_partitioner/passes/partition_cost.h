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
// what is around them: kFewestFusedOps arithmetic ops in all, and less time for the whole partition
// by the estimate of host_time.h; without that, its plain products are left, and what remains is
// weighed again. Products of float16 with few weights, and of weights that arrive at Run, take
// longer than any of that saves and are left one by one, whatever is around them.
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

// Sizes that only a Run knows are taken for these: calls are what counts with the one, with the
// other what passes through memory, and arithmetic.
inline constexpr int64_t kSmallSize = 1, kLargeSize = 32;
inline constexpr double kMostOfStockTime = 0.98;

// Does a fused node on the host gain anything by being ours? Only products of floats may not.
struct HostGain {
  Support support;
  bool costs_much = false;  // more than its readers gain by knowing the result's sizes
};
HostGain product_gains_on_host(const ir::Graph& fused, const ir::Node& node, bool decodes);
// Has it a cache of keys? Rows that only a Run knows are then one in all Runs but the first.
bool decodes(const ir::Graph& fused);
// The imported ops that such a product is made of; what is fused into it is none.
bool is_product(const ir::Node& imported);

// `cut` is the partition as it was imported, `fused` what the passes made of it. `on_host`: stock
// kernels run on the processor that ours do.
Support is_gainful(const ir::Graph& cut, const ir::Graph& fused, bool on_host);
// By the estimate of host_time.h, for small sizes and large ones. `whole` is the imported graph.
Support saves_time_on_host(const ir::Graph& whole, const ir::Graph& cut, const ir::Graph& fused);
// A fused product or attention of plain floats that gains nothing by itself on the host.
bool stock_multiplies_as_fast(const ir::Graph& fused, const ir::Node& node);
bool only_we_can_run(const ir::Graph& cut);

}  // namespace tenon
