// Quantisers and dequantisers of every domain.
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void same(NodeFacts& facts) {
  if (facts.shape(0)) facts.set_shape(0, *facts.shape(0));
}

// One scale, one for each index of `axis`, or one for each block along it; zero points likewise.
void scaled(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  facts.set_shape(0, *shape);
  const Shape* scale = facts.shape(1);
  if (!scale) return;
  const bool is_one = scale->empty() || (scale->size() == 1 && scale->front().is(1));
  if (is_one) return facts.require_elements(2, 1);
  facts.require_shape(2, *scale);
  const auto axis = normal_axis(facts.node().integer("axis", 1), shape->size());
  const int64_t block = facts.node().integer("block_size", 0);
  if (!axis) return facts.contradict("its axis is outside of its data");
  if (block <= 0) return facts.require_shape(1, {(*shape)[*axis]});
  Shape blocks = *shape;
  blocks[*axis] = ceil_div(blocks[*axis], block);
  facts.require_shape(1, blocks);
}

// y, y_scale, y_zero_point
void dynamic_quantize_linear(NodeFacts& facts) {
  same(facts);
  facts.set_shape(1, {});
  facts.set_shape(2, {});
}

// Codes, and one scale per block along `axis`.
template <int64_t kDefaultBlock>
void dynamic_block_quantize(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  facts.set_shape(0, *shape);
  const int64_t block = facts.node().integer("block_size", kDefaultBlock);
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  if (!axis || block <= 0) return;
  Shape scales = *shape;
  scales[*axis] = ceil_div(scales[*axis], block);
  facts.set_shape(1, std::move(scales));
}

constexpr ShapeRule kRules[] = {
    {"DequantizeLinear", scaled},
    {"DynamicQuantizeLinear", dynamic_quantize_linear},
    {"QuantizeLinear", scaled},
    {"com.microsoft::DequantizeLinear", same},
    {"com.microsoft::QuantizeLinear", same},
    {"trt::DequantizeLinear", same},
    {"trt::QuantizeLinear", same},
    {"trt::TRT_FP4DynamicQuantize", dynamic_block_quantize<16>},
    {"trt::TRT_FP4QDQ", same},
    {"trt::TRT_FP8DequantizeLinear", same},
    {"trt::TRT_FP8QuantizeLinear", same},
    {"trt::TRT_INT4DequantizeLinear", same},
    {"trt::TRT_INT4QuantizeLinear", same},
    {"trt::TRT_INT8DequantizeLinear", same},
    {"trt::TRT_INT8QuantizeLinear", same},
    {"trt::TRT_MXFP8DequantizeLinear", same},
    {"trt::TRT_MXFP8DynamicQuantize", dynamic_block_quantize<32>},
};

}  // namespace

std::span<const ShapeRule> quantize_shape_rules() { return kRules; }

}  // namespace tenon
