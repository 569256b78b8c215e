// The spellings of attention, by family, and the pieces that they share.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/rewrite.h"

namespace tenon::attention_forms {

std::span<const NamedRewrite> unfused_forms();
std::span<const NamedRewrite> onnx_forms();
std::span<const NamedRewrite> multi_head_forms();
std::span<const NamedRewrite> group_query_forms();
std::span<const NamedRewrite> paged_forms();
std::span<const NamedRewrite> rotary_forms();
std::span<const NamedRewrite> new_head_forms();

// The node becomes `attention` with these outputs (of the node; kNoValue where not asked for).
void write(Rewrite& r, const ir::Attention& attention, std::vector<ir::ValueId> outputs);

// Sum of two additive masks; either may be absent.
ir::ValueId add_masks(Rewrite& r, ir::ValueId a, ir::ValueId b);
// 0 where `keep` holds, `fill` elsewhere.
ir::ValueId additive_mask(Rewrite& r, ir::ValueId keep, DType dtype, double fill);
// `mask` with its last dim brought to `keys`: what is missing is hidden.
ir::ValueId pad_mask(Rewrite& r, ir::ValueId mask, const Dim& keys);
// Elements [start, start + size) of one axis.
ir::ValueId slice_axis(Rewrite& r, ir::ValueId x, int64_t axis, const Dim& start, const Dim& size);
ir::ValueId concat(Rewrite& r, const std::vector<ir::ValueId>& parts, int64_t axis);
// [B, S, H*D] as [B, H, S, D], by a view and a transpose.
ir::ValueId split_heads(Rewrite& r, ir::ValueId x, int64_t heads);

// The Transpose that alone reads y and turns [B,H,S,D] into [B,S,H,D] dissolves into y's layout.
void take_output_transpose(Rewrite& r, ir::Attention& attention);

// x [..., D] with its heads normed by their root mean square; x itself without a weight.
ir::ValueId normed_heads(Rewrite& r, ir::ValueId x, ir::ValueId weight, float epsilon);

// Whether a node's output is read by anybody; kNoValue where it is not.
ir::ValueId used_output(Rewrite& r, size_t index);

}  // namespace tenon::attention_forms
