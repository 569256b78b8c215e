#include "kernels/llvm/scaled_dot/gemv_int8.h"

#include "kernels/llvm/scaled_dot/byte_weight.h"
#include "kernels/llvm/scaled_dot/int8_bias.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

class Int8Gemv {
 public:
  Int8Gemv(LaunchWriter& writer, const WeightReader& weight, const Int8Buffers& buffers)
      : b_(writer.builder),
        weight_(weight),
        layout_(weight.layout),
        buffers_(buffers),
        bytes_(b_, layout_, buffers.weight_bytes, /*zero_offset=*/false),
        columns_(layout_.columns),
        unit_(int8_unit(layout_)),
        chain_(int8_units_per_scale(layout_)),
        panel_(b_.task()) {}

  void emit(Epilogue& epilogue) {
    epilogue.begin();
    if (is_biased()) begin_bias();
    const Tile zero = b_.constant(DType::kF32, 0, {columns_});
    const Tile total = b_.loop({b_.index(0), b_.index(layout_.k / unit_), b_.index(chain_)}, {zero},
                               [&](ValueId unit, auto carried) -> std::vector<ValueId> {
                                 return {add_chain(unit, carried[0])};
                               })[0];
    const ValueId column = b_.mul(panel_, b_.index(columns_));
    const ValueId extent = layout_.n % columns_ == 0 ? kNone : b_.sub(b_.index(layout_.n), column);
    epilogue.emit({b_.index(0), column, extent}, total);
  }

 private:
  // Codes from 0 to 15 are bytes already; what they are too large by comes off by the row's sum.
  bool has_plain_codes() const { return layout_.element == DType::kU4; }

  // Unpacking e2m1 takes as long as multiplying, so converting sums shows; see int8_bias.h.
  bool is_biased() const { return layout_.element == DType::kF4E2M1; }

  // sdot overwrites what it adds to. Loads bring that for nothing, as long as neighbours do not
  // share one: each unit of two chains has its own copy.
  void begin_bias() {
    starts_ = b_.alloc(DType::kI32, 2 * chain_ * columns_);
    const Tile bias = b_.integer_constant(DType::kI32, kBiasBaseBits + kBiasRange, {columns_});
    for (int64_t i = 0; i < 2 * chain_; ++i) b_.store({starts_, b_.index(i * columns_)}, bias);
  }

  Tile first_sums(ValueId unit) {
    if (!is_biased()) return b_.integer_constant(DType::kI32, 0, {1, columns_});
    const ValueId copy = b_.mul({b_.rem(unit, b_.index(2 * chain_)), b_.index(columns_)});
    return b_.reshape(b_.load({starts_, copy}, {columns_}), {1, columns_});
  }

  Tile as_floats(Tile acc) {
    acc = b_.reshape(acc, {columns_});
    if (!is_biased()) return b_.cast(acc, DType::kF32);
    const auto bias = static_cast<double>(kBiasBase + kBiasRange);
    return b_.sub({b_.bitcast(acc, DType::kF32), b_.constant(DType::kF32, bias, {columns_})});
  }

  // Units under one scale of the row.
  Tile add_chain(ValueId unit, Tile sum) {
    Tile t = kNone;
    for (int64_t i = 0; i < chain_; ++i) t = add_unit(b_.add(unit, b_.index(i)), t);
    const double worth = int8_byte_scale(layout_.element);
    const Tile scale =
        b_.mul({b_.load({buffers_.scales, unit, {}, {}}, {}), b_.constant(DType::kF32, worth)});
    return b_.fma(t, b_.splat(scale, {columns_}), sum);
  }

  // sum + products of the unit's bytes * scale of the weight
  Tile add_unit(ValueId unit, Tile sum) {
    const ValueId first = b_.mul(unit, b_.index(unit_));
    acc_ = first_sums(unit);
    const int wide = unit_ % 16 == 0 ? 16 : 4;  // sdot takes four bytes from any lane of a register
    Tile row = kNone;
    for (int64_t k = 0; k < unit_; k += 4) {
      const ValueId at = b_.add(first, b_.index(k));
      if (k % bytes_.k_per_load() == 0) groups_ = bytes_.load(b_, panel_, at);
      if (k % wide == 0) {
        row = b_.load({buffers_.codes, at, {b_.index(layout_.k), b_.index(1)}}, {1, wide});
      }
      acc_ = b_.dot_i8(acc_, b_.slice(row, {0, k % wide}, {1, 4}),
                       groups_[static_cast<size_t>(k % bytes_.k_per_load() / 4)]);
    }
    const Tile t = less_zero(as_floats(acc_), unit, first);
    if (layout_.scale_type == DType::kUndefined) return sum == kNone ? t : b_.add(sum, t);
    const Tile scale = weight_.load_scale(b_, panel_, block_of(first));
    return sum == kNone ? b_.mul(t, scale) : b_.fma(t, scale, sum);
  }

  Tile less_zero(Tile t, ValueId unit, ValueId first) {
    const double offset = has_plain_codes() ? static_cast<double>(layout_.zero_offset) : 0.0;
    const bool has_zeros = layout_.zero_type != DType::kUndefined;
    if (!has_zeros && offset == 0) return t;
    Tile zero = b_.constant(DType::kF32, offset, {columns_});
    if (has_zeros) zero = b_.add(weight_.load_zero(b_, panel_, block_of(first)), zero);
    return b_.sub(t, b_.mul(row_number(buffers_.sums, unit), zero));
  }

  ValueId block_of(ValueId k) { return b_.div(k, b_.index(layout_.block)); }

  Tile row_number(ValueId buffer, ValueId unit) {
    return b_.splat(b_.load({buffer, unit, {}, {}}, {}), {columns_});
  }

  Builder& b_;
  const WeightReader& weight_;
  const WeightLayout& layout_;
  const Int8Buffers& buffers_;
  ByteWeight bytes_;
  const int columns_;
  const int64_t unit_, chain_;
  const ValueId panel_;
  Tile acc_ = kNone;
  ValueId starts_ = kNone;
  std::vector<Tile> groups_;
};

}  // namespace

void emit_gemv_int8(LaunchWriter& writer, const WeightReader& weight, const Int8Buffers& buffers,
                    Epilogue& epilogue) {
  Int8Gemv(writer, weight, buffers).emit(epilogue);
}

}  // namespace tenon::kernels
