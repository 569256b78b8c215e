#include "kernels/reference/dots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/conversions.h"
#include "kernels/reference/evaluate.h"

namespace tenon::kernels::reference {

ReferenceTensor dot(const DotOperand& a, const DotOperand& b, DType result) {
  if (a.k != b.k) throw UserError(fmt::format("a dot's K differs: {} and {}", a.k, b.k));
  const Dims batch = broadcast_dims(a.batch, b.batch);
  Dims dims = batch;
  dims.insert(dims.end(), {a.rows, b.rows});
  ReferenceTensor y = ReferenceTensor::zeros(result, dims);
  for_each_index(batch, [&](const Index& index, int64_t at) {
    const double* left = a.real.data() + broadcast_index(a.batch, index) * a.rows * a.k;
    const double* right = b.real.data() + broadcast_index(b.batch, index) * b.rows * b.k;
    for (int64_t m = 0; m < a.rows; ++m) {
      for (int64_t n = 0; n < b.rows; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < a.k; ++k) sum += left[m * a.k + k] * right[n * b.k + k];
        y.set((at * a.rows + m) * b.rows + n, sum);
      }
    }
  });
  return y;
}

namespace {

// Reads a tensor of [batch..., rows, k] or, `k_first`, of [batch..., k, rows].
template <typename At>
DotOperand arrange(const Dims& dims, bool k_first, At at) {
  DotOperand operand;
  operand.batch.assign(dims.begin(), dims.end() - 2);
  operand.rows = dims[dims.size() - (k_first ? 1 : 2)];
  operand.k = dims[dims.size() - (k_first ? 2 : 1)];
  for_each_index(operand.batch, [&](const Index&, int64_t batch) {
    for (int64_t r = 0; r < operand.rows; ++r) {
      for (int64_t k = 0; k < operand.k; ++k) operand.real.push_back(at(batch, r, k));
    }
  });
  return operand;
}

DotOperand plain_operand(const ReferenceTensor& x, bool k_first) {
  const int64_t columns = x.dims.back(), area = x.dims[x.dims.size() - 2] * columns;
  return arrange(x.dims, k_first, [&](int64_t batch, int64_t r, int64_t k) {
    return x.number(batch * area + (k_first ? k * columns + r : r * columns + k));
  });
}

// Numpy's matmul: a vector stands for a matrix of one row or column, which the result drops again.
ReferenceTensor matmul(const ReferenceTensor& a, const ReferenceTensor& b, bool trans_a,
                       bool trans_b, DType result) {
  ReferenceTensor left = a, right = b;
  if (a.dims.size() == 1) left.dims.insert(left.dims.begin(), 1);
  if (b.dims.size() == 1) right.dims.push_back(1);
  ReferenceTensor y = dot(plain_operand(left, trans_a), plain_operand(right, !trans_b), result);
  if (b.dims.size() == 1) y.dims.pop_back();
  if (a.dims.size() == 1) y.dims.erase(y.dims.end() - (b.dims.size() == 1 ? 1 : 2));
  return y;
}

void scale_all(ReferenceTensor& y, double factor) {
  for (double& value : y.reals) value *= factor;
}

void add_broadcast(ReferenceTensor& y, const ReferenceTensor& x, double factor) {
  for_each_index(y.dims, [&](const Index& index, int64_t flat) {
    y.set(flat, y.number(flat) + factor * x.number(broadcast_index(x.dims, index)));
  });
}

// Integer products stay exact: sums of int8 products fit a double.
Outputs matmul_op(const Call& call) {
  return {matmul(call.input(0), call.input(1), false, false, call.output_type())};
}

Outputs fused_matmul(const Call& call) {
  ReferenceTensor y = matmul(call.input(0), call.input(1), call.node.integer("transA", 0) != 0,
                             call.node.integer("transB", 0) != 0, call.output_type());
  scale_all(y, call.node.number("alpha", 1));
  return {std::move(y)};
}

Outputs gemm(const Call& call) {
  ReferenceTensor y = matmul(call.input(0), call.input(1), call.node.integer("transA", 0) != 0,
                             call.node.integer("transB", 0) != 0, call.output_type());
  scale_all(y, call.node.number("alpha", 1));
  if (call.has(2)) add_broadcast(y, call.input(2), call.node.number("beta", 1));
  return {std::move(y)};
}

Outputs matmul_integer(const Call& call) {
  ReferenceTensor a = cast(call.input(0), DType::kI32), b = cast(call.input(1), DType::kI32);
  for_each_index(a.dims, [&](const Index& index, int64_t flat) {
    if (!call.has(2)) return;
    const bool scalar = call.input(2).elements() == 1;
    a.set(flat, a.number(flat) - call.input(2).number(scalar ? 0 : index[index.size() - 2]));
  });
  for_each_index(b.dims, [&](const Index& index, int64_t flat) {
    if (!call.has(3)) return;
    b.set(flat,
          b.number(flat) - call.input(3).number(call.input(3).elements() == 1 ? 0 : index.back()));
  });
  return {matmul(a, b, false, false, DType::kI32)};
}

// Elements of `type` stored in the bytes of `x`, row after row: rows may be longer than needed.
class PackedRows {
 public:
  PackedRows(const ReferenceTensor& x, DType type, int64_t rows)
      : type_(type),
        bytes_(x.bytes()),
        row_(stored_elements(x, type) / std::max<int64_t>(rows, 1)) {}
  double at(int64_t row, int64_t column) const {
    return load_element(type_, bytes_.data(), row * row_ + column);
  }

 private:
  static int64_t stored_elements(const ReferenceTensor& x, DType type) {
    return static_cast<int64_t>(storage_bytes(x.dtype, x.elements())) * 8 / bit_width(type);
  }
  DType type_;
  std::vector<std::byte> bytes_;
  int64_t row_;
};

// Weights kept as bytes, one row per output channel, with one scale per block of a row.
struct PackedWeight {
  int64_t n, k, block;
  DType type;
  double zero_offset;
  DType scale_type;  // what uint8 scales hold; kUndefined: their own type
};

DotOperand packed_operand(const PackedWeight& weight, const ReferenceTensor& b,
                          const ReferenceTensor& scale, const ReferenceTensor* zero) {
  const PackedRows codes(b, weight.type, weight.n);
  const DType scale_type = weight.scale_type == DType::kUndefined ? scale.dtype : weight.scale_type;
  const PackedRows scales(scale, scale_type, weight.n);
  const bool packed_zero = zero && !zero->is_real();
  const PackedRows zeros(zero ? *zero : b,
                         packed_zero ? weight.type
                         : zero      ? zero->dtype
                                     : weight.type,
                         weight.n);
  return arrange({weight.n, weight.k}, false, [&](int64_t, int64_t n, int64_t k) {
    const int64_t block = weight.block == 0 ? 0 : k / weight.block;
    const double offset = zero ? zeros.at(n, block) : weight.zero_offset;
    return (codes.at(n, k) - offset) * scales.at(n, block);
  });
}

DotOperand activation(const ReferenceTensor& a) {
  if (a.dims.size() > 1) return plain_operand(a, false);
  ReferenceTensor row = a;
  row.dims.insert(row.dims.begin(), 1);
  return plain_operand(row, false);
}

Outputs finish_packed(const Call& call, const ReferenceTensor& a, const PackedWeight& weight,
                      const ReferenceTensor& scale, const ReferenceTensor* zero, double alpha,
                      size_t bias) {
  ReferenceTensor y =
      dot(activation(a), packed_operand(weight, call.input(1), scale, zero), call.output_type());
  scale_all(y, alpha);
  if (call.has(bias)) add_broadcast(y, call.input(bias), 1);
  return {std::move(y)};
}

Outputs matmul_nbits(const Call& call) {
  const int64_t bits = call.node.integer("bits", 4);
  const DType type = bits == 2 ? DType::kU2 : bits == 4 ? DType::kU4 : DType::kU8;
  const PackedWeight weight{call.node.integer("N", 0),
                            call.node.integer("K", 0),
                            call.node.integer("block_size", 0),
                            type,
                            static_cast<double>(int64_t{1} << (bits - 1)),
                            DType::kUndefined};
  if (call.has(4)) throw UserError("the reference does not know MatMulNBits with g_idx");
  const ReferenceTensor* zero = call.has(3) ? &call.input(3) : nullptr;
  return finish_packed(call, call.input(0), weight, call.input(2), zero, 1, 5);
}

// a, b (uint8 nibbles), block scales (uint8 e4m3), global scale, input scale? (changes nothing),
// bias?
Outputs matmul_fp4_weight(const Call& call) {
  const int64_t n = call.input(1).dims.at(0), k = call.input(1).dims.at(1) * 2;
  const PackedWeight weight{
      n, k, call.node.integer("block_size", 16), DType::kF4E2M1, 0, DType::kF8E4M3FN};
  return finish_packed(call, call.input(0), weight, call.input(2), nullptr, call.scalar(3, 1), 5);
}

// a, b (e4m3), block scales (f32), a scale? (a goes through e4m3 and back), bias?
Outputs matmul_fp8_weight(const Call& call) {
  const int64_t n = call.input(1).dims.at(0), k = call.input(1).dims.at(1);
  const PackedWeight weight{
      n, k, call.node.integer("block_size", 128), call.input(1).dtype, 0, DType::kUndefined};
  ReferenceTensor a = call.input(0);
  const double step = call.scalar(3, 1);
  for (int64_t i = 0; call.has(3) && i < a.elements(); ++i) {
    a.set(i, decode(weight.type, encode(weight.type, a.number(i) / step)) * step);
  }
  return finish_packed(call, a, weight, call.input(2), nullptr, 1, 4);
}

// One side of a ScaledDot in its own layout, with a scale and a zero point per (row, block of k).
DotOperand scaled_operand(const ReferenceTensor& x, const ir::BlockScale& side,
                          const ReferenceTensor* scale, const ReferenceTensor* zero, bool k_first) {
  const Dims& dims = x.dims;
  const int64_t rows = dims[dims.size() - (k_first ? 1 : 2)],
                k_size = dims[dims.size() - (k_first ? 2 : 1)];
  const int64_t blocks = side.block == 0 ? 1 : (k_size + side.block - 1) / side.block;
  const int64_t area = rows * k_size;
  // Scalars serve all, vectors one row each, and the rest follows the operand's layout.
  const auto parameter = [&](const ReferenceTensor& p, int64_t batch, int64_t r, int64_t k) {
    if (p.elements() == 1 || !side.per_channel) return p.number(0);
    const int64_t block = side.block == 0 ? 0 : k / side.block;
    const int64_t within = k_first ? block * rows + r : r * blocks + block;
    return p.number(p.elements() == rows * blocks ? within : batch * rows * blocks + within);
  };
  return arrange(dims, k_first, [&](int64_t batch, int64_t r, int64_t k) {
    const double code = x.number(batch * area + (k_first ? k * rows + r : r * k_size + k));
    const double offset =
        zero ? parameter(*zero, batch, r, k) : static_cast<double>(side.zero_offset);
    return (code - offset) * (scale ? parameter(*scale, batch, r, k) : 1);
  });
}

// The scales that count: codes of another type dequantised, those of two levels multiplied and
// rounded.
ReferenceTensor effective_scale(const ReferenceTensor& stored, const ir::BlockScale& side) {
  const DType type = side.scale_type == DType::kUndefined ? stored.dtype : side.scale_type;
  const ReferenceTensor scale = type == stored.dtype ? stored : reinterpret(stored, type);
  if (side.rounded == DType::kUndefined) return scale;
  ReferenceTensor products = ReferenceTensor::zeros(side.rounded, scale.dims);
  for (int64_t i = 0; i < scale.elements(); ++i) {
    const auto product = static_cast<float>(scale.number(i)) * side.factor;
    products.set(i, decode(side.rounded, encode(side.rounded, product)));
  }
  return products;
}

}  // namespace

DotOperands scaled_dot_operands(const Call& call) {
  const ir::ScaledDot node = ir::ScaledDot::from(call.node);
  const auto operand = [&](ir::ValueId id) -> const ReferenceTensor* {
    if (id == ir::kNoValue) return nullptr;
    for (size_t i = 0; i < call.node.inputs.size(); ++i) {
      if (call.node.inputs[i] == id) return call.inputs[i];
    }
    return nullptr;
  };
  const auto side = [&](ir::ValueId id, const ir::BlockScale& scaling, bool k_first) {
    std::optional<ReferenceTensor> scale;
    if (scaling.scale != ir::kNoValue) scale = effective_scale(*operand(scaling.scale), scaling);
    return scaled_operand(*operand(id), scaling, scale ? &*scale : nullptr,
                          operand(scaling.zero_point), k_first);
  };
  DotOperands both;
  ReferenceTensor a = *operand(node.a);
  if (a.dims.size() == 1) a.dims.insert(a.dims.begin(), 1);
  both.a = a.dims == operand(node.a)->dims ? side(node.a, node.scale_a, node.a_k_first)
                                           : plain_operand(a, false);
  if (node.b_dims.empty()) {
    both.b = side(node.b, node.scale_b, !node.b_k_last);
    return both;
  }
  if (!node.b_k_last) throw UserError("packed weights of a ScaledDot must be [N, K]");
  const PackedWeight weight{node.b_dims.at(0),
                            node.b_dims.at(1),
                            node.scale_b.block,
                            node.b_type,
                            static_cast<double>(node.scale_b.zero_offset),
                            node.scale_b.scale_type};
  const ReferenceTensor one = ReferenceTensor::of(
      DType::kF32, {weight.n}, std::vector<double>(static_cast<size_t>(weight.n), 1.0));
  const ReferenceTensor* scale = operand(node.scale_b.scale);
  both.b = packed_operand(weight, *operand(node.b), scale ? *scale : one,
                          operand(node.scale_b.zero_point));
  return both;
}

namespace {

Outputs scaled_dot(const Call& call) {
  const ir::ScaledDot node = ir::ScaledDot::from(call.node);
  const DotOperands operands = scaled_dot_operands(call);
  const DType type = node.result != DType::kUndefined ? node.result : call.output_type();
  ReferenceTensor y = dot(operands.a, operands.b, type);
  constexpr size_t kAlpha = 6, kBias = 7, kFirstExtra = 8;
  scale_all(y, call.scalar(kAlpha, 1) * node.alpha_constant);
  if (call.input(0).dims.size() == 1) y.dims.erase(y.dims.end() - 2);
  if (call.has(kBias)) add_broadcast(y, call.input(kBias), 1);
  if (!call.node.body) return {std::move(y)};
  std::vector<ReferenceTensor> inputs{std::move(y)};
  for (size_t i = kFirstExtra; i < call.node.inputs.size(); ++i) inputs.push_back(call.input(i));
  return evaluate(*call.node.body, inputs, {call.round_values, call.symbols});
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"MatMul", matmul_op},
    {"Gemm", gemm},
    {"MatMulInteger", matmul_integer},
    {"com.microsoft::FusedMatMul", fused_matmul},
    {"com.microsoft::MatMulNBits", matmul_nbits},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", matmul_fp4_weight},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", matmul_fp8_weight},
    {"tenon::ScaledDot", scaled_dot},
});

}  // namespace

std::span<const OpEntry> dot_ops() { return kOps; }

}  // namespace tenon::kernels::reference
