// MatMul, MatMulInteger, Gemm and com.microsoft::FusedMatMul, over plain or dequantised operands.
#include "base/convert.h"
#include "graph_partitioner/passes/scaled_dot_forms/forms.h"
#include "graph_partitioner/passes/scaled_dot_forms/operand.h"
#include "graph_partitioner/pattern.h"

namespace tenon::scaled_dot_forms {
namespace {

using ir::kNoValue;
using ir::ScaledDot;
using ir::ValueId;

constexpr int64_t kMostFoldedBias = 1 << 18;

bool is_float_product(Rewrite& r) {
  const DType type = r.dtype(r.output());
  return is_floating(type) && !is_small_float(type) && type == r.dtype(r.input(0)) &&
         type == r.dtype(r.input(1));
}

// Two global scales meet in one alpha: a constant one becomes a number.
void set_alpha(Rewrite& r, ScaledDot& dot, ValueId global_a, ValueId global_b) {
  if (global_a == kNoValue || global_b == kNoValue) {
    dot.alpha = global_a == kNoValue ? global_b : global_a;
    return;
  }
  dot.alpha = global_b;
  if (const auto number = scalar_constant(r.graph(), global_a)) {
    dot.alpha_constant *= static_cast<float>(*number);
  } else {
    const ValueId a = r.emit.reshape(global_a, {}), b = r.emit.reshape(global_b, {});
    dot.alpha = r.emit.binary("Mul", a, b);
  }
}

void set_operands(Rewrite& r, ScaledDot& dot, const Operand& a, const Operand& b) {
  dot.a = a.value;
  dot.b = b.value;
  dot.scale_a = a.scale;
  dot.scale_b = b.scale;
  dot.a_k_first = a.swapped;
  dot.b_k_last = b.swapped;
  dot.result = r.dtype(r.output());
  r.absorb(a.sources);
  r.absorb(b.sources);
  set_alpha(r, dot, a.global, b.global);
}

std::optional<size_t> rank(Rewrite& r, ValueId id) {
  const auto& shape = r.graph().value(id).shape;
  return shape ? std::optional(shape->size()) : std::nullopt;
}

// A vector is a matrix with one row (left) or one column (right), which the result does not show.
bool vector_product(Rewrite& r, bool left, bool right) {
  const auto a = r.shape(r.input(0)), b = r.shape(r.input(1)), y = r.shape(r.output());
  if (!a || !b || !y) return false;
  ScaledDot dot;
  dot.a = left ? r.emit.reshape(r.input(0), {1, (*a)[0]}) : r.input(0);
  dot.b = right ? r.emit.reshape(r.input(1), {(*b)[0], 1}) : r.input(1);
  dot.result = r.dtype(r.output());
  Shape full = *y;
  if (left) full.insert(full.end() - (right ? 0 : 1), Dim(1));
  if (right) full.push_back(1);
  ir::Node product;
  dot.write_to(product);
  const ValueId result = r.emit.emit(std::move(product), dot.result, full);
  r.become("Reshape", {result});
  return true;
}

bool mat_mul(Rewrite& r) {
  const auto a_rank = rank(r, r.input(0)), b_rank = rank(r, r.input(1));
  if (!a_rank || !b_rank || *a_rank == 0 || *b_rank == 0 || !is_float_product(r)) return false;
  if (*a_rank == 1 || *b_rank == 1) return vector_product(r, *a_rank == 1, *b_rank == 1);
  ScaledDot dot;
  set_operands(r, dot, trace_operand(r.graph(), r.input(0), Side::kLeft, false),
               trace_operand(r.graph(), r.input(1), Side::kRight, false));
  write(r, dot);
  return true;
}

// beta * c: as a constant where c is a small one.
ValueId scaled_bias(Rewrite& r, ValueId c, float beta) {
  if (beta == 1.0f) return c;
  const ir::Value& value = r.graph().value(c);
  if (!value.is_constant() || value.constant->elements() > kMostFoldedBias) {
    return r.emit.binary("Mul", c, r.emit.scalar(value.dtype, beta));
  }
  const ir::TensorPtr tensor = value.constant;
  std::vector<double> scaled;
  for (int64_t i = 0; i < tensor->elements(); ++i) {
    scaled.push_back(beta * load_element(tensor->dtype, tensor->data, i));
  }
  return r.graph().add_constant(value.name, ir::Tensor::of(tensor->dtype, tensor->dims, scaled));
}

bool gemm(Rewrite& r) {
  if (rank(r, r.input(0)) != 2u || rank(r, r.input(1)) != 2u || !is_float_product(r)) return false;
  const ir::Node& node = r.node();
  const float beta = node.number("beta", 1.0f);
  ScaledDot dot;
  dot.alpha_constant = node.number("alpha", 1.0f);
  set_operands(r, dot,
               trace_operand(r.graph(), r.input(0), Side::kLeft, node.integer("transA", 0) != 0),
               trace_operand(r.graph(), r.input(1), Side::kRight, node.integer("transB", 0) != 0));
  if (r.has_input(2) && beta != 0.0f) dot.bias = scaled_bias(r, r.input(2), beta);
  write(r, dot);
  return true;
}

bool fused_mat_mul(Rewrite& r) {
  const ir::Node& node = r.node();
  const auto a_rank = rank(r, r.input(0)), b_rank = rank(r, r.input(1));
  if (!a_rank || !b_rank || *a_rank < 2 || *b_rank < 2 || !is_float_product(r)) return false;
  if (node.integer("transBatchA", 0) != 0 || node.integer("transBatchB", 0) != 0) return false;
  ScaledDot dot;
  dot.alpha_constant = node.number("alpha", 1.0f);
  set_operands(r, dot,
               trace_operand(r.graph(), r.input(0), Side::kLeft, node.integer("transA", 0) != 0),
               trace_operand(r.graph(), r.input(1), Side::kRight, node.integer("transB", 0) != 0));
  write(r, dot);
  return true;
}

bool is_one_number(Rewrite& r, size_t input) {
  const auto shape = r.shape(r.input(input));
  return shape && is_static(*shape) && element_count(*shape).is(1);
}

bool is_all_zero(const ir::Value& value) {
  if (!value.is_constant()) return false;
  for (int64_t i = 0; i < value.constant->elements(); ++i) {
    if (load_integer(value.dtype, value.constant->data, i) != 0) return false;
  }
  return true;
}

// A zero point of MatMulInteger: one number is the dot's, one for each row of A or column of B is
// taken off behind it.
struct ZeroPoint {
  ValueId number = kNoValue, vector = kNoValue;  // one of them, or none where it is 0
};

ZeroPoint zero_point_of(Rewrite& r, size_t input) {
  if (!r.has_input(input) || is_all_zero(r.graph().value(r.input(input)))) return {};
  if (is_one_number(r, input)) return {r.input(input), kNoValue};
  return {kNoValue, r.input(input)};
}

// The sums of x along `axis`, with its zero point taken off each element.
ValueId sums_along(Rewrite& r, ValueId x, ValueId zero_point, int64_t axis) {
  const Dim count = r.shape(x)->at(static_cast<size_t>(axis));
  const ValueId wide = r.emit.cast(x, DType::kI32);
  const ValueId sums = r.emit.reduce("ReduceSum", wide, {axis});
  if (zero_point == kNoValue) return sums;
  const ValueId number = r.emit.cast(r.emit.reshape(zero_point, {}), DType::kI32);
  const ValueId all = r.emit.binary("Mul", number, r.emit.dim_value(count, DType::kI32));
  return r.emit.binary("Sub", sums, all);
}

// The zero points as columns of A or rows of B, in int32.
ValueId as_column(Rewrite& r, ValueId zero_points) {
  const Shape shape = *r.shape(zero_points);
  const ValueId column =
      shape.size() == 1 ? r.emit.reshape(zero_points, {shape[0], 1}) : zero_points;
  return r.emit.cast(column, DType::kI32);
}

// Bytes times bytes, summed in int32: a dot without scales whose operands have zero points. With
// one for each row m of A and each column n of B,
//
//   sum (a - u[m]) (b - v[n])  =  sum a b  -  v[n] sum (a - u[m])  -  u[m] sum b
//
// which int32 holds modulo 2^32 as it holds the left side.
bool mat_mul_integer(Rewrite& r) {
  const auto a = r.shape(r.input(0)), b = r.shape(r.input(1)), y = r.shape(r.output());
  if (!a || !b || !y || a->size() < 2 || b->size() < 2) return false;
  for (const size_t input : {2, 3}) {
    if (r.has_input(input) && !r.shape(r.input(input))) return false;
  }
  const ZeroPoint rows = zero_point_of(r, 2), columns = zero_point_of(r, 3);
  ScaledDot dot;
  dot.a = r.input(0);
  dot.b = r.input(1);
  dot.scale_a.per_channel = dot.scale_b.per_channel = false;
  dot.scale_a.zero_point = rows.number;
  dot.scale_b.zero_point = columns.number;
  dot.result = DType::kI32;
  if (rows.vector == kNoValue && columns.vector == kNoValue) {
    write(r, dot);
    return true;
  }
  ir::Node product;
  dot.write_to(product);
  ValueId sum = r.emit.emit(std::move(product), DType::kI32, *y);
  ValueId column = kNoValue;
  if (rows.vector != kNoValue) {
    column = as_column(r, rows.vector);
    const ValueId sums = sums_along(r, dot.b, columns.number, static_cast<int64_t>(b->size()) - 2);
    sum = r.emit.binary("Sub", sum, r.emit.binary("Mul", column, sums));
  }
  if (columns.vector != kNoValue) {
    ValueId sums = sums_along(r, dot.a, rows.number, static_cast<int64_t>(a->size()) - 1);
    if (column != kNoValue) {
      const ValueId depth = r.emit.dim_value(a->back(), DType::kI32);
      sums = r.emit.binary("Sub", sums, r.emit.binary("Mul", column, depth));
    }
    const ValueId row = r.emit.cast(columns.vector, DType::kI32);
    sum = r.emit.binary("Sub", sum, r.emit.binary("Mul", sums, row));
  }
  return r.replace(0, sum);
}

constexpr NamedRewrite kRules[] = {
    {"MatMul", mat_mul},
    {"MatMulInteger", mat_mul_integer},
    {"Gemm", gemm},
    {"com.microsoft::FusedMatMul", fused_mat_mul},
    {"com.microsoft::TransposeMatMul", fused_mat_mul},
};

}  // namespace

void write(Rewrite& r, const ScaledDot& dot) {
  ir::Node& node = r.graph().node(r.id());
  node.attributes.clear();
  dot.write_to(node);
}

std::span<const NamedRewrite> plain_forms() { return kRules; }

}  // namespace tenon::scaled_dot_forms
