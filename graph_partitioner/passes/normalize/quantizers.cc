// Quantisers of every domain in one form: QuantizeLinear and DequantizeLinear with a non-negative
// axis, block_size where there are blocks, scale_type where uint8 scales hold another type's codes.
// The output's type stands on the value.
#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::kNoValue;
using ir::ValueId;

bool has_one_element(Rewrite& r, ValueId id) {
  const auto shape = r.shape(id);
  return shape && element_count(*shape).is(1);
}

// nullopt: the axis does not fit, and whoever runs the model says so.
std::optional<Attributes> canonical(Rewrite& r, DType hidden_scale) {
  const ir::Node& node = r.node();
  Attributes attributes;
  for (const char* kept : {"saturate", "precision", "scale_type"}) {
    if (node.has(kept)) attributes[kept] = node.attributes.at(kept);
  }
  const int64_t block = node.integer("block_size", 0);
  if (block > 0) attributes["block_size"] = block;
  const bool per_tensor = block == 0 && has_one_element(r, r.input(1));
  if (!per_tensor) {
    const int64_t given = node.integer("axis", 1);
    const auto& shape = r.graph().value(r.input(0)).shape;
    const auto axis = decomposition::normal_axis(given, shape);
    if (shape && !axis) return std::nullopt;
    attributes["axis"] = axis.value_or(given);
  }
  if (hidden_scale != DType::kUndefined && r.dtype(r.input(1)) == DType::kU8) {
    attributes["scale_type"] = std::string(name(hidden_scale));
  }
  return attributes;
}

bool rewrite_as(Rewrite& r, const std::string& op, DType hidden_scale = DType::kUndefined) {
  if (!r.has_input(0) || !r.has_input(1)) return false;
  const auto attributes = canonical(r, hidden_scale);
  if (!attributes || (r.node().is(op) && *attributes == r.node().attributes)) return false;
  std::vector<ValueId> inputs = {r.input(0), r.input(1)};
  if (r.has_input(2)) inputs.push_back(r.input(2));
  r.become(op, std::move(inputs), *attributes);
  return true;
}

bool quantize(Rewrite& r) { return rewrite_as(r, "QuantizeLinear"); }
bool dequantize(Rewrite& r) { return rewrite_as(r, "DequantizeLinear"); }
bool mx_dequantize(Rewrite& r) { return rewrite_as(r, "DequantizeLinear", DType::kF8E8M0); }

constexpr NamedRewrite kRules[] = {
    {"QuantizeLinear", quantize},
    {"DequantizeLinear", dequantize},
    {"com.microsoft::QuantizeLinear", quantize},
    {"com.microsoft::DequantizeLinear", dequantize},
    {"trt::QuantizeLinear", quantize},
    {"trt::DequantizeLinear", dequantize},
    {"trt::TRT_FP8QuantizeLinear", quantize},
    {"trt::TRT_FP8DequantizeLinear", dequantize},
    {"trt::TRT_INT4QuantizeLinear", quantize},
    {"trt::TRT_INT4DequantizeLinear", dequantize},
    {"trt::TRT_INT8QuantizeLinear", quantize},
    {"trt::TRT_INT8DequantizeLinear", dequantize},
    {"trt::TRT_MXFP8DequantizeLinear", mx_dequantize},
};

}  // namespace

std::span<const NamedRewrite> quantizer_rules() { return kRules; }

}  // namespace tenon::normalization
