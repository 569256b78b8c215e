// Quantisation and dequantisation, as ONNX defines them: (x - zero_point) * scale, and back.
#include <array>

#include "graph_partitioner/passes/decompose/rules.h"
#include "graph_partitioner/passes/fold/quantize.h"

namespace tenon::decomposition {
namespace {

// A scale or zero point spread so that it broadcasts with x: one element, one per index of `axis`,
// or one per block of it. kNoValue where its shape is none of these.
ValueId spread(Emitter& emit, const Node& node, ValueId parameter) {
  const auto own = emit.shape(parameter);
  if (!own) return kNoValue;
  if (own->empty() || (own->size() == 1 && (*own)[0].is(1))) return emit.reshape(parameter, {});
  const auto shape = emit.shape(node.input(0));
  const auto axis = normal_axis(node.integer("axis", 1), shape);
  if (!axis) return kNoValue;
  const Dim size = (*shape)[*axis];
  const int64_t block = node.integer("block_size", 0);
  if (block == 0) {
    if (own->size() != 1 || !((*own)[0] == size)) return kNoValue;
    Shape aligned(shape->size() - *axis, Dim(1));
    aligned[0] = size;
    return emit.reshape(parameter, aligned);
  }
  if (block < 0 || own->size() != shape->size()) return kNoValue;
  if (!((*own)[*axis] == ceil_div(size, Dim(block)))) return kNoValue;
  return emit.block_expand(parameter, *axis, block, size);
}

// A uint8 scale may hold the codes of e8m0 or e4m3: normalisation then names that type.
ValueId typed_scale(Emitter& emit, const Node& node) {
  const ValueId scale = node.input(1);
  const std::string name = node.text("scale_type", "");
  const auto type = parse_dtype(name);
  return name.empty() || !type ? scale : emit.bitcast(scale, *type);
}

// Small floats have no zero point but 0.
bool has_zero_point(Emitter& emit, const Node& node) {
  return node.input(2) != kNoValue && is_integer(emit.dtype(node.input(2)));
}

Results dequantize_linear(Emitter& emit, const Node& node) {
  const ValueId scale = spread(emit, node, typed_scale(emit, node));
  if (scale == kNoValue) return {};
  ValueId x = node.input(0);
  if (has_zero_point(emit, node)) {
    const ValueId zero = spread(emit, node, node.input(2));
    if (zero == kNoValue) return {};
    // i32 does not fit a float's mantissa: the difference is taken first.
    const DType type = emit.dtype(x) == DType::kI32 ? DType::kI32 : DType::kF32;
    x = emit.cast(x, type);
    x = emit.binary("Sub", x, emit.cast(zero, type));
  }
  x = emit.cast(x, DType::kF32);
  return {emit.binary("Mul", x, emit.cast(scale, DType::kF32))};
}

ValueId divide(Emitter& emit, ValueId x, ValueId scale, DType type) {
  const DType wide = type == DType::kF64 ? DType::kF64 : DType::kF32;
  if (!is_floating(type)) type = wide;
  const auto rounded = [&](ValueId operand) {
    const bool narrows = emit.dtype(operand) == DType::kF32 && type != wide;
    return emit.cast(narrows ? emit.cast(operand, type) : operand, wide);
  };
  const ValueId dividend = rounded(x), divisor = rounded(scale);
  return emit.cast(emit.binary("Div", dividend, divisor), type);
}

Results quantize_linear(Emitter& emit, const Node& node) {
  const ValueId typed = typed_scale(emit, node);
  const ValueId scale = spread(emit, node, typed);
  if (scale == kNoValue) return {};
  ValueId zero = kNoValue;
  if (has_zero_point(emit, node)) {
    zero = spread(emit, node, node.input(2));
    if (zero == kNoValue) return {};
  }
  const DType division = folding::division_type(node, emit.dtype(node.input(0)), emit.dtype(typed));
  const ValueId ratio = divide(emit, node.input(0), scale, division);
  const bool saturate = node.integer("saturate", 1) != 0;
  return {emit.quantize(ratio, zero, emit.dtype(node.output(0)), saturate)};
}

// uint8, with a range that always holds 0:
//   scale = (max - min) / 255, or 1/255 for a tensor of zeros;  zero = round(-min / scale)
Results dynamic_quantize_linear(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  if (!shape) return {};
  ValueId x = node.input(0);
  if (shape->empty()) x = emit.reshape(x, {1});
  const auto axes = axes_between(0, static_cast<int64_t>(emit.shape(x)->size()));
  const ValueId high = emit.binary("Max", emit.reduce("ReduceMax", x, axes), 0.0);
  const ValueId low = emit.binary("Min", emit.reduce("ReduceMin", x, axes), 0.0);
  const ValueId range = emit.binary("Sub", high, low);
  const ValueId one = emit.scalar_like(x, 1.0);
  const ValueId safe = emit.where(emit.compare("Equal", range, 0.0), one, range);
  const ValueId scale = emit.binary("Div", safe, 255.0);
  const ValueId start = emit.unary("Neg", emit.binary("Div", low, scale));
  const ValueId zero = emit.quantize(start, kNoValue, DType::kU8, true);
  const ValueId y = emit.quantize(emit.binary("Div", x, scale), zero, DType::kU8, true);
  return {emit.reshape(y, *shape), emit.reshape(scale, {}), emit.reshape(zero, {})};
}

// Blocks of the last axis become an axis of their own: [..., K] -> [..., K/block, block].
struct Blocks {
  Shape shape, scale_shape;
  ValueId x = kNoValue;        // f32
  ValueId largest = kNoValue;  // max |x| of each block
};

Blocks split_blocks(Emitter& emit, const Node& node, int64_t default_block) {
  Blocks blocks;
  const auto shape = emit.shape(node.input(0));
  const auto axis = normal_axis(node.integer("axis", -1), shape);
  const int64_t block = node.integer("block_size", default_block);
  if (!axis || *axis + 1 != static_cast<int64_t>(shape->size()) || block < 1) return blocks;
  const Dim count = floor_div(shape->back(), Dim(block));
  if (!(count * block == shape->back())) return blocks;
  blocks.shape = *shape;
  blocks.scale_shape = *shape;
  blocks.scale_shape.back() = count;
  Shape split = blocks.scale_shape;
  split.emplace_back(block);
  blocks.x = emit.cast(emit.reshape(node.input(0), split), DType::kF32);
  blocks.largest = emit.reduce("ReduceMax", emit.unary("Abs", blocks.x), {*axis + 1});
  return blocks;
}

// x / scale, and 0 for a block of zeros.
ValueId scaled_down(Emitter& emit, ValueId x, ValueId scale) {
  const ValueId zero = emit.scalar_like(x, 0.0);
  const ValueId is_zero = emit.compare("Equal", scale, zero);
  return emit.where(is_zero, zero, emit.binary("Div", x, scale));
}

// NVFP4: e4m3 block scales under one given global scale; 6 is the largest e2m1.
Results fp4_dynamic_quantize(Emitter& emit, const Node& node) {
  const Blocks blocks = split_blocks(emit, node, 16);
  const auto global_shape = emit.shape(node.input(1));
  if (blocks.x == kNoValue || !global_shape || !element_count(*global_shape).is(1)) return {};
  const ValueId global = emit.cast(emit.reshape(node.input(1), {}), DType::kF32);
  const ValueId wanted = emit.binary("Div", emit.binary("Div", blocks.largest, 6.0), global);
  const ValueId scale = emit.cast(wanted, DType::kF8E4M3FN, {{"saturate", int64_t{1}}});
  const ValueId real_scale = emit.binary("Mul", emit.cast(scale, DType::kF32), global);
  const ValueId codes =
      emit.quantize(scaled_down(emit, blocks.x, real_scale), kNoValue, DType::kF4E2M1, true);
  return {emit.reshape(codes, blocks.shape), emit.reshape(scale, blocks.scale_shape)};
}

ValueId one_for_zero(Emitter& emit, ValueId scale) {
  const ValueId one = emit.scalar_like(scale, 1.0);
  return emit.where(emit.compare("Equal", scale, 0.0), one, scale);
}

// NVFP4 and back, under a global scale that the whole tensor's largest element tells.
Results fp4_fake_quantize(Emitter& emit, const Node& node) {
  const Blocks blocks = split_blocks(emit, node, 16);
  if (blocks.x == kNoValue) return {};
  const auto axes = axes_between(0, static_cast<int64_t>(blocks.shape.size()) + 1);
  const ValueId peak = emit.reshape(emit.reduce("ReduceMax", blocks.largest, axes), {});
  const ValueId overall = one_for_zero(emit, emit.binary("Div", peak, folding::kNvfp4Largest));
  const ValueId unit = emit.binary("Mul", overall, folding::kE2m1Largest);
  const ValueId wanted = one_for_zero(emit, emit.binary("Div", blocks.largest, unit));
  const ValueId held = emit.binary("Max", wanted, folding::kE4m3Smallest);
  const ValueId scale = emit.cast(held, DType::kF8E4M3FN, {{"saturate", int64_t{1}}});
  const ValueId step = emit.binary("Mul", emit.cast(scale, DType::kF32), overall);
  const ValueId ratio = emit.binary("Div", blocks.x, step);
  const ValueId codes = emit.quantize(ratio, kNoValue, DType::kF4E2M1, true);
  const ValueId y = emit.binary("Mul", emit.cast(codes, DType::kF32), step);
  return {emit.reshape(y, blocks.shape)};
}

// MXFP8: power-of-two block scales, rounded up so that nothing saturates; 448 is the largest e4m3.
Results mxfp8_dynamic_quantize(Emitter& emit, const Node& node) {
  const Blocks blocks = split_blocks(emit, node, 32);
  if (blocks.x == kNoValue) return {};
  const ValueId wanted = emit.binary("Div", blocks.largest, 448.0);
  const ValueId scale = emit.cast(wanted, DType::kF8E8M0,
                                  {{"round_mode", std::string("up")}, {"saturate", int64_t{1}}});
  const ValueId ratio = emit.binary("Div", blocks.x, emit.cast(scale, DType::kF32));
  const ValueId codes = emit.quantize(ratio, kNoValue, DType::kF8E4M3FN, true);
  const ValueId stored = emit.reshape(scale, blocks.scale_shape);
  return {emit.reshape(codes, blocks.shape), emit.bitcast(stored, emit.dtype(node.output(1)))};
}

// Scales that were made as e8m0, and are only called uint8 on their way, are e8m0.
Results bitcast(Emitter& emit, const Node& node) {
  return {emit.bitcast(node.input(0), emit.dtype(node.output(0)))};
}

// A constant whose bytes hold several elements each, unpacked along its last axis.
ValueId unpacked(Emitter& emit, ValueId packed, int64_t bits, DType* type) {
  *type = emit.dtype(packed);
  if (*type != DType::kU8 || bits == 8) return packed;
  if (!emit.value(packed).is_constant() || (bits != 4 && bits != 2)) return kNoValue;
  auto dims = emit.value(packed).constant->dims;
  if (dims.empty()) return kNoValue;
  dims.back() *= 8 / bits;
  *type = bits == 4 ? DType::kU4 : DType::kU2;
  return emit.relabel(packed, *type, dims);
}

// Rows are picked first and dequantised after, never the whole table.
Results gather_block_quantized(Emitter& emit, const Node& node) {
  const int64_t bits = node.integer("bits", 4), block = node.integer("block_size", 128);
  const bool packed = emit.dtype(node.input(0)) == DType::kU8;
  DType type;
  const ValueId data = unpacked(emit, node.input(0), bits, &type);
  if (data == kNoValue) return {};
  const auto shape = emit.shape(data);
  const auto scale_shape = emit.shape(node.input(2));
  const auto gather_axis = normal_axis(node.integer("gather_axis", 0), shape);
  const auto axis = normal_axis(node.integer("quantize_axis", 1), shape);
  if (!gather_axis || !axis || block < 1 || !scale_shape || scale_shape->size() != shape->size() ||
      !emit.shape(node.input(1)) ||
      !((*scale_shape)[*axis] == ceil_div((*shape)[*axis], Dim(block)))) {
    return {};
  }
  const auto picked = [&](ValueId per_block) {
    const ValueId spread = emit.block_expand(per_block, *axis, block, (*shape)[*axis]);
    return emit.cast(emit.gather(spread, node.input(1), *gather_axis), DType::kF32);
  };
  ValueId x = emit.cast(emit.gather(data, node.input(1), *gather_axis), DType::kF32);
  if (node.input(3) != kNoValue) {
    ValueId zero = unpacked(emit, node.input(3), bits, &type);
    if (zero == kNoValue) return {};
    // An odd number of blocks leaves a part of the last byte unused.
    const size_t rank = shape->size();
    if (packed)
      zero =
          emit.slice(zero, std::vector<Dim>(rank, 0), std::vector<int64_t>(rank, 1), *scale_shape);
    x = emit.binary("Sub", x, picked(zero));
  } else if (packed) {
    x = emit.binary("Sub", x, static_cast<double>(int64_t{1} << (bits - 1)));
  }
  return {emit.binary("Mul", x, picked(node.input(2)))};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"DequantizeLinear", dequantize_linear},
    {"QuantizeLinear", quantize_linear},
    {"DynamicQuantizeLinear", dynamic_quantize_linear},
    {"trt::TRT_FP4DynamicQuantize", fp4_dynamic_quantize},
    {"trt::TRT_FP4QDQ", fp4_fake_quantize},
    {"trt::TRT_MXFP8DynamicQuantize", mxfp8_dynamic_quantize},
    {"com.microsoft::GatherBlockQuantized", gather_block_quantized},
    {"tenon::Bitcast", bitcast},
});

}  // namespace

std::span<const NamedRule> quantization_rules() { return kRules; }

}  // namespace tenon::decomposition
