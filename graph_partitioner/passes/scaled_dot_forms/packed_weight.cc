// Ops that carry their quantised weight themselves, stored [N, K] with nibbles hidden in uint8.
//
//   MatMulNBits                    a, b u8 [N,blocks,bytes], scales, zeros?, -, bias?
//   MatMulBlockQuantizedFp4Weight  a, b u8 [N,K/2], scale u8 (e4m3), global, _, bias?
//   MatMulBlockQuantizedFp8Weight  a, b f8 [N,K], scale f32, a_scale?, bias?
#include "graph_partitioner/passes/scaled_dot_forms/forms.h"
#include "graph_partitioner/passes/scaled_dot_forms/operand.h"

namespace tenon::scaled_dot_forms {
namespace {

using ir::kNoValue;
using ir::ScaledDot;
using ir::ValueId;

bool has_shape(Rewrite& r, ValueId id, const std::vector<int64_t>& dims) {
  const auto& shape = r.graph().value(id).shape;
  return shape && *shape == make_shape(dims);
}

bool has_elements(Rewrite& r, ValueId id, int64_t count) {
  const auto& shape = r.graph().value(id).shape;
  return shape && element_count(*shape).is(count);
}

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The last dim of a is K, and a is a matrix at least.
bool reads(Rewrite& r, ValueId a, int64_t k) {
  const auto& shape = r.graph().value(a).shape;
  return shape && shape->size() >= 2 && (!shape->back().is_constant() || shape->back().is(k));
}

DType code_type(int64_t bits) {
  switch (bits) {
    case 2:
      return DType::kU2;
    case 4:
      return DType::kU4;
    case 8:
      return DType::kU8;
    default:
      return DType::kUndefined;
  }
}

bool zero_points_fit(Rewrite& r, ValueId zeros, int64_t n, int64_t blocks, int64_t bits) {
  if (zeros == kNoValue) return true;
  const bool packed = r.dtype(zeros) == DType::kU8;
  return has_elements(r, zeros, n * (packed ? ceil_of(blocks * bits, 8) : blocks));
}

bool mat_mul_n_bits(Rewrite& r) {
  const ir::Node& node = r.node();
  const int64_t n = node.integer("N", 0), k = node.integer("K", 0);
  const int64_t bits = node.integer("bits", 4), block = node.integer("block_size", 0);
  const ValueId zeros = r.input(3);
  // g_idx reorders K; a prepacked weight is in the layout of one CUDA kernel.
  if (r.has_input(4) || node.integer("weight_prepacked", 0) != 0) return false;
  if (n <= 0 || k <= 0 || block <= 0 || code_type(bits) == DType::kUndefined) return false;
  const int64_t blocks = ceil_of(k, block);
  if (!reads(r, r.input(0), k) || r.dtype(r.input(1)) != DType::kU8) return false;
  if (!has_shape(r, r.input(1), {n, blocks, ceil_of(block * bits, 8)})) return false;
  if (!has_elements(r, r.input(2), n * blocks)) return false;
  if (!zero_points_fit(r, zeros, n, blocks, bits)) return false;
  ScaledDot dot;
  dot.a = r.input(0);
  dot.b = r.input(1);
  dot.scale_b.scale = r.input(2);
  dot.scale_b.zero_point = zeros;
  dot.scale_b.block = block;
  if (zeros == kNoValue) dot.scale_b.zero_offset = int64_t{1} << (bits - 1);
  dot.bias = r.input(5);
  dot.b_k_last = true;
  dot.b_type = code_type(bits);
  dot.b_dims = {n, k};
  dot.accuracy_level = static_cast<int>(node.integer("accuracy_level", 0));
  dot.result = r.dtype(r.output());
  write(r, dot);
  return true;
}

bool fp4_weight(Rewrite& r) {
  const auto& stored = r.graph().value(r.input(1)).shape;
  if (!stored || stored->size() != 2 || !is_static(*stored)) return false;
  const int64_t n = (*stored)[0].value(), k = 2 * (*stored)[1].value();
  const int64_t block = r.node().integer("block_size", 16);
  if (block <= 0 || !reads(r, r.input(0), k) || !r.has_input(3)) return false;
  if (!has_shape(r, r.input(2), {n, ceil_of(k, block)})) return false;
  if (!has_elements(r, r.input(3), 1)) return false;
  ScaledDot dot;
  dot.a = r.input(0);
  dot.b = r.input(1);
  dot.scale_b.scale = r.input(2);
  dot.scale_b.scale_type = DType::kF8E4M3FN;
  dot.scale_b.block = block;
  dot.alpha = r.input(3);
  dot.bias = r.input(5);  // input 4, a scale of the activation, changes nothing by its definition
  dot.b_k_last = true;
  dot.b_type = DType::kF4E2M1;
  dot.b_dims = {n, k};
  dot.result = r.dtype(r.output());
  write(r, dot);
  return true;
}

// a_scale asks for a's own round trip through f8.
ValueId through_f8(Rewrite& r, ValueId a, ValueId scale) {
  if (scale == kNoValue) return a;
  const auto shape = r.graph().value(a).shape;
  ir::Node quantize, dequantize;
  quantize.op = "QuantizeLinear";
  dequantize.op = "DequantizeLinear";
  quantize.inputs = {a, scale};
  const ValueId codes = r.emit.emit(std::move(quantize), DType::kF8E4M3FN, shape);
  dequantize.inputs = {codes, scale};
  return r.emit.emit(std::move(dequantize), r.dtype(a), shape);
}

bool fp8_weight(Rewrite& r) {
  const auto& stored = r.graph().value(r.input(1)).shape;
  if (!stored || stored->size() != 2 || !is_static(*stored)) return false;
  const int64_t n = (*stored)[0].value(), k = (*stored)[1].value();
  const int64_t block = r.node().integer("block_size", 128);
  if (block <= 0 || !reads(r, r.input(0), k)) return false;
  if (!has_shape(r, r.input(2), {n, ceil_of(k, block)})) return false;
  if (r.has_input(3) && !has_elements(r, r.input(3), 1)) return false;
  const Operand a =
      trace_operand(r.graph(), through_f8(r, r.input(0), r.input(3)), Side::kLeft, false);
  ScaledDot dot;
  dot.a = a.value;
  dot.scale_a = a.scale;
  dot.b = r.input(1);
  dot.scale_b.scale = r.input(2);
  dot.scale_b.block = block;
  dot.bias = r.input(4);
  dot.b_k_last = true;
  dot.result = r.dtype(r.output());
  write(r, dot);
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"com.microsoft::MatMulNBits", mat_mul_n_bits},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", fp4_weight},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", fp8_weight},
};

}  // namespace

std::span<const NamedRewrite> packed_weight_forms() { return kRules; }

}  // namespace tenon::scaled_dot_forms
