// Quantisers and dequantisers of every domain.
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void same(NodeFacts& facts) {
  if (facts.shape(0)) facts.set_shape(0, *facts.shape(0));
}

// y, y_scale, y_zero_point
void dynamic_quantize_linear(NodeFacts& facts) {
  same(facts);
  facts.set_shape(1, {});
  facts.set_shape(2, {});
}

// Codes, and one scale per block along `axis`.
void dynamic_block_quantize(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  facts.set_shape(0, *shape);
  const int64_t block = facts.node().integer("block_size", 0);
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  if (!axis || block <= 0) return;
  Shape scales = *shape;
  scales[*axis] = ceil_div(scales[*axis], block);
  facts.set_shape(1, std::move(scales));
}

constexpr ShapeRule kRules[] = {
    {"DequantizeLinear", same},
    {"DynamicQuantizeLinear", dynamic_quantize_linear},
    {"QuantizeLinear", same},
    {"com.microsoft::DequantizeLinear", same},
    {"com.microsoft::QuantizeLinear", same},
    {"trt::DequantizeLinear", same},
    {"trt::QuantizeLinear", same},
    {"trt::TRT_FP4DynamicQuantize", dynamic_block_quantize},
    {"trt::TRT_FP8DequantizeLinear", same},
    {"trt::TRT_FP8QuantizeLinear", same},
    {"trt::TRT_INT4DequantizeLinear", same},
    {"trt::TRT_INT4QuantizeLinear", same},
    {"trt::TRT_INT8DequantizeLinear", same},
    {"trt::TRT_INT8QuantizeLinear", same},
    {"trt::TRT_MXFP8DequantizeLinear", same},
    {"trt::TRT_MXFP8DynamicQuantize", dynamic_block_quantize},
};

}  // namespace

std::span<const ShapeRule> quantize_shape_rules() { return kRules; }

}  // namespace tenon
