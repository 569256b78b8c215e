#include "kernels/reference/conversions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace tenon::kernels::reference {

double as_held(DType dtype, double value) {
  return dtype == DType::kF64 ? value : static_cast<double>(static_cast<float>(value));
}

ReferenceTensor cast(const ReferenceTensor& x, DType to, EncodeRule rule) {
  ReferenceTensor y = ReferenceTensor::zeros(to, x.dims);
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (x.is_real() || y.is_real()) {
      const double value = x.is_real() ? as_held(x.dtype, x.number(i)) : x.number(i);
      const uint64_t code = encode(to, value, rule);
      if (y.is_real()) {
        y.set(i, decode(to, code));
      } else {
        y.set_integer(i, static_cast<int64_t>(code));
      }
    } else {
      const int64_t integer = x.integers[static_cast<size_t>(i)];
      y.set_integer(i, to == DType::kBool ? integer != 0 : integer);
    }
  }
  return y;
}

ReferenceTensor reinterpret(const ReferenceTensor& x, DType to) {
  if (bit_width(x.dtype) != bit_width(to)) throw InternalError("a bitcast must keep the width");
  const std::vector<std::byte> codes = x.bytes();
  return ReferenceTensor::from_bytes(to, x.dims, codes.data());
}

DType onnx_element_type(int64_t number) {
  constexpr auto kTypes = std::to_array<DType>(
      {DType::kUndefined,  DType::kF32,  DType::kU8,       DType::kI8,         DType::kU16,
       DType::kI16,        DType::kI32,  DType::kI64,      DType::kString,     DType::kBool,
       DType::kF16,        DType::kF64,  DType::kU32,      DType::kU64,        DType::kUndefined,
       DType::kUndefined,  DType::kBF16, DType::kF8E4M3FN, DType::kF8E4M3FNUZ, DType::kF8E5M2,
       DType::kF8E5M2FNUZ, DType::kU4,   DType::kI4,       DType::kF4E2M1,     DType::kF8E8M0,
       DType::kU2,         DType::kI2});
  return number >= 0 && number < static_cast<int64_t>(kTypes.size())
             ? kTypes[static_cast<size_t>(number)]
             : DType::kUndefined;
}

ScaleIndex::ScaleIndex(const Dims& x_dims, const Dims& scale_dims, int64_t axis, int64_t block)
    : scale_dims_(scale_dims), block_(block) {
  scalar_ = element_count(scale_dims) == 1 && (block == 0 || scale_dims.size() <= 1);
  if (scalar_) return;
  axis_ = normal_axis(axis, x_dims.size());
  Dims expected{x_dims[axis_]};
  if (block > 0) {
    expected = x_dims;
    expected[axis_] = (x_dims[axis_] + block - 1) / block;
  }
  if (scale_dims != expected) {
    throw UserError(fmt::format("a scale for {} along axis {} in blocks of {} must be {}, got {}",
                                x_dims, axis_, block, expected, scale_dims));
  }
}

int64_t ScaleIndex::at(const Index& x_index) const {
  if (scalar_) return 0;
  if (block_ == 0) return x_index[axis_];
  Index index = x_index;
  index[axis_] /= block_;
  return flat_index(scale_dims_, index);
}

namespace {

EncodeRule encode_rule(const ir::Node& node) {
  const std::string mode = node.text("round_mode", "up");
  EncodeRule rule;
  rule.saturate = node.integer("saturate", 1) != 0;
  rule.round = mode == "up"     ? RoundMode::kUp
               : mode == "down" ? RoundMode::kDown
                                : RoundMode::kNearestEven;
  return rule;
}

DType target_type(const Call& call, std::string_view attribute, DType otherwise) {
  const DType declared = call.graph.value(call.node.output(0)).dtype;
  if (declared != DType::kUndefined) return declared;
  const DType named = onnx_element_type(call.node.integer(attribute, 0));
  return named != DType::kUndefined ? named : otherwise;
}

Outputs cast_op(const Call& call) {
  return {cast(call.input(0), target_type(call, "to", DType::kUndefined), encode_rule(call.node))};
}

Outputs cast_like(const Call& call) {
  return {cast(call.input(0), call.input(1).dtype, encode_rule(call.node))};
}

Outputs bitcast(const Call& call) { return {reinterpret(call.input(0), call.output_type())}; }

// uint8 scales may hold the codes of another type, which the op implies or normalisation names.
ReferenceTensor typed_scale(const Call& call, DType implied) {
  const ReferenceTensor& scale = call.input(1);
  const std::optional<DType> named = parse_dtype(call.node.text("scale_type", ""));
  const DType type = named.value_or(implied);
  return type == DType::kUndefined || scale.dtype != DType::kU8 ? scale : reinterpret(scale, type);
}

// What an op means where its node does not say.
struct Spelling {
  int64_t axis = 1, block = 0;
  DType scale = DType::kUndefined, codes = DType::kUndefined;  // of what is declared uint8
  DType division = DType::kUndefined;                          // kUndefined: as ONNX has it
  bool blocks_by_shape = false;  // TensorRT's 4-bit ops: fewer scales than weights along one axis
};

ScaleIndex scale_index(const Call& call, const ReferenceTensor& scale, const Spelling& spelling) {
  const Dims& x = call.input(0).dims;
  int64_t axis = call.node.integer("axis", spelling.axis);
  int64_t block = call.node.integer("block_size", spelling.block);
  if (spelling.blocks_by_shape && block == 0 && scale.dims.size() == x.size()) {
    for (size_t at = 0; at < x.size(); ++at) {
      if (x[at] == scale.dims[at]) continue;
      axis = static_cast<int64_t>(at);
      block = x[at] / scale.dims[at];
    }
  }
  return ScaleIndex(x, scale.dims, axis, block);
}

ReferenceTensor dequantize(const Call& call, const Spelling& spelling = {}) {
  const bool is_hidden = spelling.codes != DType::kUndefined && call.input(0).dtype == DType::kU8;
  const ReferenceTensor x = is_hidden ? reinterpret(call.input(0), spelling.codes) : call.input(0);
  const ReferenceTensor scale = typed_scale(call, spelling.scale);
  const ScaleIndex index_of = scale_index(call, scale, spelling);
  const DType otherwise = scale.dtype == DType::kF8E8M0 ? DType::kF32 : scale.dtype;
  ReferenceTensor y = ReferenceTensor::zeros(target_type(call, "output_dtype", otherwise), x.dims);
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const int64_t at = index_of.at(index);
    const double zero = call.has(2) ? call.input(2).number(at) : 0;
    y.set(flat, (x.number(flat) - zero) * scale.number(at));
  });
  return y;
}

// The type that the quotient is rounded to: `precision`, else the operands' common one.
DType division_type(const Call& call, DType scale) {
  const DType asked = onnx_element_type(call.node.integer("precision", 0));
  const DType x = call.input(0).dtype;
  if (asked != DType::kUndefined) return asked;
  return is_floating(x) && (x == scale || scale == DType::kF8E8M0) ? x : DType::kF32;
}

void set_code(ReferenceTensor& y, int64_t index, uint64_t code) {
  if (y.is_real()) {
    y.set(index, decode(y.dtype, code));
  } else {
    y.set_integer(index, static_cast<int64_t>(code));
  }
}

ReferenceTensor quantize_linear(const Call& call, DType implied_type,
                                const Spelling& spelling = {}) {
  const ReferenceTensor& x = call.input(0);
  const ReferenceTensor scale = typed_scale(call, DType::kUndefined);
  const ScaleIndex index_of = scale_index(call, scale, spelling);
  const DType zero_type = call.has(2) ? call.input(2).dtype : implied_type;
  ReferenceTensor y = ReferenceTensor::zeros(target_type(call, "output_dtype", zero_type), x.dims);
  const bool as_onnx = spelling.division == DType::kUndefined || call.node.has("precision");
  const DType precision = as_onnx ? division_type(call, scale.dtype) : spelling.division;
  const auto rounded = [&](double value) { return decode(precision, encode(precision, value)); };
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const int64_t at = index_of.at(index);
    const double zero = call.has(2) ? call.input(2).number(at) : 0;
    const double ratio = rounded(rounded(x.number(flat)) / rounded(scale.number(at)));
    set_code(y, flat, quantize(y.dtype, ratio, zero, encode_rule(call.node)));
  });
  return y;
}

// The primitive: its operand is divided already.
Outputs quantize_primitive(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const Dims dims = call.has(1) ? broadcast_dims(x.dims, call.input(1).dims) : x.dims;
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(), dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    const double ratio = as_held(x.dtype, x.number(broadcast_index(x.dims, index)));
    const double zero =
        call.has(1) ? call.input(1).number(broadcast_index(call.input(1).dims, index)) : 0;
    set_code(y, flat, quantize(y.dtype, ratio, zero, encode_rule(call.node)));
  });
  return {std::move(y)};
}

constexpr Spelling kMx{.axis = -1, .block = 32, .scale = DType::kF8E8M0};
constexpr Spelling kFp8{.codes = DType::kF8E4M3FN};
constexpr Spelling kInt4{.division = DType::kF32, .blocks_by_shape = true};
constexpr Spelling kWide{.division = DType::kF32};

Outputs dequantize_op(const Call& call) { return {dequantize(call)}; }
Outputs dequantize_mx(const Call& call) { return {dequantize(call, kMx)}; }
Outputs dequantize_fp8(const Call& call) { return {dequantize(call, kFp8)}; }
Outputs dequantize_trt(const Call& call) {
  const bool is_fp8 = call.has(2) && call.input(2).dtype == DType::kF8E4M3FN;
  return {dequantize(call, is_fp8 ? kFp8 : Spelling{})};
}
Outputs dequantize_int4(const Call& call) { return {dequantize(call, kInt4)}; }
Outputs quantize_op(const Call& call) { return {quantize_linear(call, DType::kU8)}; }
Outputs quantize_trt(const Call& call) { return {quantize_linear(call, DType::kU8, kWide)}; }
Outputs quantize_fp8(const Call& call) { return {quantize_linear(call, DType::kF8E4M3FN, kWide)}; }
Outputs quantize_int8(const Call& call) { return {quantize_linear(call, DType::kI8, kWide)}; }
Outputs quantize_int4(const Call& call) { return {quantize_linear(call, DType::kI4, kInt4)}; }

Outputs dynamic_quantize_linear(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  float low = 0, high = 0;
  for (int64_t i = 0; i < x.elements(); ++i) {
    low = std::min(low, static_cast<float>(x.number(i)));
    high = std::max(high, static_cast<float>(x.number(i)));
  }
  const float scale = high == low ? 1.0f / 255 : (high - low) / 255;
  const auto zero = static_cast<double>(quantize(DType::kU8, -low / scale, 0));
  ReferenceTensor y = ReferenceTensor::zeros(DType::kU8, x.dims);
  for (int64_t i = 0; i < x.elements(); ++i) {
    set_code(y, i, quantize(DType::kU8, static_cast<float>(x.number(i)) / scale, zero));
  }
  return {std::move(y), ReferenceTensor::of(DType::kF32, {}, {scale}),
          ReferenceTensor::of(DType::kU8, {}, {zero})};
}

// Blocks of the last axis get a scale each: scale_of(max |x|) decides it, the codes follow.
template <typename ScaleOf>
Outputs quantize_blocks(const Call& call, int64_t default_block, DType code_type, double global,
                        ScaleOf scale_of) {
  const ReferenceTensor& x = call.input(0);
  const int64_t block = call.node.integer("block_size", default_block);
  Dims scale_dims = x.dims;
  scale_dims.back() = (x.dims.back() + block - 1) / block;
  ReferenceTensor y = ReferenceTensor::zeros(code_type, x.dims);
  const DType scale_type = call.output_type(1);
  ReferenceTensor scales = ReferenceTensor::zeros(scale_type, scale_dims);
  const int64_t k = x.dims.back();
  for (int64_t s = 0; s < scales.elements(); ++s) {
    const int64_t row = s / scale_dims.back(), first = s % scale_dims.back() * block;
    const int64_t last = std::min(k, first + block);
    float largest = 0;
    for (int64_t i = first; i < last; ++i) {
      const auto magnitude = static_cast<float>(std::fabs(x.number(row * k + i)));
      // NaN stays, so that the whole block shows it.
      if (!(magnitude <= largest)) largest = magnitude;
    }
    const auto [code, scale] = scale_of(largest);
    if (scales.is_real()) {
      scales.set(s, decode(scale_type, code));
    } else {
      scales.set_integer(s, static_cast<int64_t>(code));
    }
    const auto divisor = static_cast<float>(scale * global);
    for (int64_t i = first; i < last; ++i) {
      const auto value = static_cast<float>(x.number(row * k + i));
      set_code(y, row * k + i, encode(code_type, divisor == 0 ? 0.0f : value / divisor));
    }
  }
  return {std::move(y), std::move(scales)};
}

struct BlockScaleCode {
  uint64_t code;
  double value;
};

// NVFP4: 6 is the largest e2m1, and the block's scale is itself e4m3 under a given global scale.
Outputs fp4_dynamic_quantize(const Call& call) {
  const auto global = static_cast<float>(call.input(1).number(0));
  return quantize_blocks(call, 16, DType::kF4E2M1, global, [&](float largest) {
    const uint64_t code = encode(DType::kF8E4M3FN, largest / 6 / global);
    return BlockScaleCode{code, decode(DType::kF8E4M3FN, code)};
  });
}

// NVFP4 and back: the global scale follows from the largest element of all.
Outputs fp4_fake_quantize(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const int64_t block = call.node.integer("block_size", 16);
  const auto peak_of = [&](int64_t begin, int64_t end) {
    float peak = 0;
    for (int64_t i = begin; i < end; ++i) {
      peak = std::max(peak, static_cast<float>(std::fabs(x.number(i))));
    }
    return peak;
  };
  const auto or_one = [](float scale) { return scale == 0 ? 1.0F : scale; };
  const float overall = or_one(peak_of(0, x.elements()) / 2688);
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(0), x.dims);
  for (int64_t begin = 0; begin < x.elements(); begin += block) {
    const float wanted = or_one(peak_of(begin, begin + block) / (6 * overall));
    const uint64_t scale = encode(DType::kF8E4M3FN, std::clamp(wanted, 0x1p-9F, 448.0F));
    const float step = static_cast<float>(decode(DType::kF8E4M3FN, scale)) * overall;
    for (int64_t i = begin; i < begin + block; ++i) {
      const uint64_t code = encode(DType::kF4E2M1, static_cast<float>(x.number(i)) / step);
      y.set(i, static_cast<float>(decode(DType::kF4E2M1, code)) * step);
    }
  }
  return {std::move(y)};
}

// MXFP8: a power of two, rounded up so that 448, the largest e4m3, is never passed.
Outputs mxfp8_dynamic_quantize(const Call& call) {
  return quantize_blocks(call, 32, DType::kF8E4M3FN, 1, [&](float largest) {
    const uint64_t code = encode(DType::kF8E8M0, largest / 448, {true, RoundMode::kUp});
    return BlockScaleCode{code, decode(DType::kF8E8M0, code)};
  });
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"Cast", cast_op},
    {"CastLike", cast_like},
    {"tenon::Bitcast", bitcast},
    {"tenon::Quantize", quantize_primitive},
    {"DequantizeLinear", dequantize_op},
    {"com.microsoft::DequantizeLinear", dequantize_op},
    {"QuantizeLinear", quantize_op},
    {"com.microsoft::QuantizeLinear", quantize_op},
    {"DynamicQuantizeLinear", dynamic_quantize_linear},
    {"trt::DequantizeLinear", dequantize_trt},
    {"trt::QuantizeLinear", quantize_trt},
    {"trt::TRT_FP8QuantizeLinear", quantize_fp8},
    {"trt::TRT_FP8DequantizeLinear", dequantize_fp8},
    {"trt::TRT_INT4QuantizeLinear", quantize_int4},
    {"trt::TRT_INT4DequantizeLinear", dequantize_int4},
    {"trt::TRT_INT8QuantizeLinear", quantize_int8},
    {"trt::TRT_INT8DequantizeLinear", dequantize_op},
    {"trt::TRT_MXFP8DequantizeLinear", dequantize_mx},
    {"trt::TRT_FP4DynamicQuantize", fp4_dynamic_quantize},
    {"trt::TRT_FP4QDQ", fp4_fake_quantize},
    {"trt::TRT_MXFP8DynamicQuantize", mxfp8_dynamic_quantize},
});

}  // namespace

std::span<const OpEntry> conversion_ops() { return kOps; }

}  // namespace tenon::kernels::reference
