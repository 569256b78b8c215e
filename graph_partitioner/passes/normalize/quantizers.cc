// Quantisers of every domain in one form: QuantizeLinear and DequantizeLinear with a non-negative
// axis, block_size where there are blocks, scale_type where uint8 scales hold another type's codes.
// The output's type stands on the value.
#include <fmt/format.h>

#include "graph_partitioner/passes/fold/quantize.h"
#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::kNoValue;
using ir::ValueId;

constexpr int64_t kNvfp4Block = 16;  // where nothing else is said

bool has_one_element(Rewrite& r, ValueId id) {
  const auto shape = r.shape(id);
  return shape && element_count(*shape).is(1);
}

// What a spelling means where it does not say.
struct Spelling {
  std::string_view op;
  int64_t axis = 1, block = 0;
  DType hidden_scale = DType::kUndefined;  // of scales that are declared uint8
  bool divides_wide = false;               // x / scale in float32, whatever their types
};

struct Blocks {
  int64_t axis, size;
};

// TensorRT reads the blocks of 4-bit weights off the shapes: the one axis along which there are
// fewer scales than weights.
std::optional<Blocks> implied_blocks(Rewrite& r) {
  const auto weights = r.shape(r.input(0)), scales = r.shape(r.input(1));
  if (!weights || !scales || weights->size() != scales->size()) return std::nullopt;
  std::optional<Blocks> blocks;
  for (size_t axis = 0; axis < weights->size(); ++axis) {
    const Dim &all = (*weights)[axis], &some = (*scales)[axis];
    if (all == some) continue;
    const bool is_known = all.is_constant() && some.is_constant() && some.value() > 0;
    if (blocks || !is_known || all.value() % some.value() != 0) return std::nullopt;
    blocks = {static_cast<int64_t>(axis), all.value() / some.value()};
  }
  return blocks;
}

// nullopt: the axis does not fit, and whoever runs the model says so.
std::optional<Attributes> canonical(Rewrite& r, const Spelling& spelling) {
  const ir::Node& node = r.node();
  Attributes attributes;
  for (const char* kept : {"saturate", "precision", "scale_type"}) {
    if (node.has(kept)) attributes[kept] = node.attributes.at(kept);
  }
  const int64_t block = node.integer("block_size", spelling.block);
  if (block > 0) attributes["block_size"] = block;
  const bool per_tensor = block == 0 && has_one_element(r, r.input(1));
  if (!per_tensor) {
    const int64_t given = node.integer("axis", spelling.axis);
    const auto& shape = r.graph().value(r.input(0)).shape;
    const auto axis = decomposition::normal_axis(given, shape);
    if (shape && !axis) return std::nullopt;
    attributes["axis"] = axis.value_or(given);
  }
  if (spelling.divides_wide && !node.has("precision") && bit_width(r.dtype(r.input(0))) == 16) {
    attributes["precision"] = int64_t{1};
  }
  if (spelling.hidden_scale != DType::kUndefined && r.dtype(r.input(1)) == DType::kU8) {
    attributes["scale_type"] = std::string(name(spelling.hidden_scale));
  }
  return attributes;
}

// `codes`: what the first input's bytes are.
bool rewrite_as(Rewrite& r, const Spelling& spelling, DType codes = DType::kUndefined) {
  if (!r.has_input(0) || !r.has_input(1)) return false;
  const auto attributes = canonical(r, spelling);
  if (!attributes || (r.node().is(spelling.op) && *attributes == r.node().attributes)) return false;
  std::vector<ValueId> inputs = {r.input(0), r.input(1)};
  if (codes != DType::kUndefined) inputs[0] = r.emit.bitcast(inputs[0], codes);
  if (r.has_input(2)) inputs.push_back(r.input(2));
  r.become(std::string(spelling.op), std::move(inputs), *attributes);
  return true;
}

// A weight that comes as floats with its quantiser behind: kernels take codes as constants only.
// The runtime folds its own quantisers where the host has a kernel, and TensorRT's nowhere.
bool fold_codes(Rewrite& r) {
  const auto constant = [&](size_t input) -> ir::TensorPtr {
    if (!r.has_input(input)) return nullptr;
    const ir::Value& value = r.graph().value(r.input(input));
    return value.is_constant() && value.constant->stands_for.empty() ? value.constant : nullptr;
  };
  const ir::TensorPtr x = constant(0), scale = constant(1), zero = constant(2);
  if (!x || !scale || (r.has_input(2) && !zero) || r.node().has("scale_type")) return false;
  if (r.graph().is_output(r.output())) return false;
  const ir::TensorPtr codes =
      folding::quantize(r.node(), *x, *scale, zero.get(), r.dtype(r.output()));
  if (!codes) return false;
  return r.replace(0, r.graph().add_constant(r.graph().value(r.output()).name, codes));
}

bool quantize(Rewrite& r) { return rewrite_as(r, {"QuantizeLinear"}) || fold_codes(r); }
bool dequantize(Rewrite& r) { return rewrite_as(r, {"DequantizeLinear"}); }

bool mx_dequantize(Rewrite& r) {
  return rewrite_as(r, {"DequantizeLinear", -1, 32, DType::kF8E8M0});
}

bool int4_as(Rewrite& r, Spelling spelling) {
  if (!r.node().has("block_size")) {
    if (const auto blocks = implied_blocks(r)) {
      spelling.axis = blocks->axis;
      spelling.block = blocks->size;
    }
  }
  return rewrite_as(r, spelling);
}

// TensorRT's quantisers, as torch simulates them while Model Optimizer calibrates.
constexpr Spelling kWideQuantizer{.op = "QuantizeLinear", .divides_wide = true};

bool int4_quantize(Rewrite& r) { return int4_as(r, kWideQuantizer); }
bool int4_dequantize(Rewrite& r) { return int4_as(r, {"DequantizeLinear"}); }

bool trt_quantize(Rewrite& r) {
  const DType made = r.dtype(r.output());
  if (r.has_input(2) && r.dtype(r.input(2)) != made) {
    return r.refuse(fmt::format("its zero point is of {} and output_dtype names {}",
                                name(r.dtype(r.input(2))), name(made)));
  }
  return rewrite_as(r, kWideQuantizer);
}

bool wide_quantize(Rewrite& r) { return rewrite_as(r, kWideQuantizer); }

// FP8 codes may be declared uint8 (import_graph.cc knows those that a quantiser makes).
bool fp8_dequantize(Rewrite& r) {
  const bool is_hidden = r.has_input(0) && r.dtype(r.input(0)) == DType::kU8;
  return rewrite_as(r, {"DequantizeLinear"}, is_hidden ? DType::kF8E4M3FN : DType::kUndefined);
}

bool trt_dequantize(Rewrite& r) {
  if (r.has_input(0) && r.dtype(r.input(0)) == DType::kU8) {
    if (!r.has_input(2)) {
      return r.refuse(
          "its data is declared uint8, which may be integers or FP8 codes: a zero point of the "
          "one type or the other tells");
    }
    if (r.dtype(r.input(2)) == DType::kF8E4M3FN) return fp8_dequantize(r);
  }
  return dequantize(r);
}

// NVFP4 and back. A weight becomes what Model Optimizer writes where it compresses it itself: codes
// under two DequantizeLinear. What is made at Run is decomposed.
bool fp4_fake_quantize(Rewrite& r) {
  const auto shape = r.shape(r.input(0));
  const int64_t block = r.node().integer("block_size", kNvfp4Block);
  if (!shape || shape->empty() || block < 1) return false;
  const Dim& size = shape->back();
  if (size.is_constant() && size.value() % block != 0) {
    return r.refuse(
        fmt::format("its last axis of {} is no multiple of block_size {}", size.value(), block));
  }
  const ir::Value& x = r.graph().value(r.input(0));
  if (!x.is_constant() || !x.constant->stands_for.empty()) return false;
  const auto weight = folding::quantize_nvfp4(*x.constant, block);
  if (!weight) return false;
  const std::string name = x.name;
  const ValueId codes = r.graph().add_constant(name + "_f4", weight->codes);
  const ValueId scales = r.graph().add_constant(name + "_f8_scale", weight->scales);
  const ValueId overall = r.graph().add_constant(name + "_f8_scale_f32_scale", weight->overall);
  ir::Node dequantize;
  dequantize.op = "DequantizeLinear";
  dequantize.inputs = {scales, overall};
  const ValueId steps = r.emit.emit(std::move(dequantize), DType::kF32, r.shape(scales));
  const auto axis = static_cast<int64_t>(shape->size()) - 1;
  r.become("DequantizeLinear", {codes, steps}, {{"axis", axis}, {"block_size", block}});
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"QuantizeLinear", quantize},
    {"DequantizeLinear", dequantize},
    {"com.microsoft::QuantizeLinear", quantize},
    {"com.microsoft::DequantizeLinear", dequantize},
    {"trt::QuantizeLinear", trt_quantize},
    {"trt::DequantizeLinear", trt_dequantize},
    {"trt::TRT_FP4QDQ", fp4_fake_quantize},
    {"trt::TRT_FP8QuantizeLinear", wide_quantize},
    {"trt::TRT_FP8DequantizeLinear", fp8_dequantize},
    {"trt::TRT_INT4QuantizeLinear", int4_quantize},
    {"trt::TRT_INT4DequantizeLinear", int4_dequantize},
    {"trt::TRT_INT8QuantizeLinear", wide_quantize},
    {"trt::TRT_INT8DequantizeLinear", dequantize},
    {"trt::TRT_MXFP8DequantizeLinear", mx_dequantize},
};

}  // namespace

std::span<const NamedRewrite> quantizer_rules() { return kRules; }

}  // namespace tenon::normalization
