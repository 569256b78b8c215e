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
        bytes_(buffers.unsigned_weight
                   ? ByteWeight::of_unsigned(b_, layout_, buffers.weight_bytes)
                   : ByteWeight(b_, layout_, buffers.weight_bytes, /*zero_offset=*/false)),
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
  // sdot takes four bytes from any lane of a register; vpdpbusd reads them from memory.
  int bytes_at_once() const { return !bytes_.is_unsigned && unit_ % 16 == 0 ? 16 : 4; }

  // What each byte is too large by; it comes off by the row's sum.
  double excess() const {
    const auto offset = static_cast<double>(layout_.zero_offset);
    if (!bytes_.is_unsigned) return layout_.element == DType::kU4 ? offset : 0;
    return static_cast<double>(unsigned_bytes(layout_.element).excess) + offset;
  }

  // Where unpacking e2m1 takes as long as multiplying, converting sums shows; see int8_bias.h.
  bool is_biased() const { return layout_.element == DType::kF4E2M1 && !bytes_.is_unsigned; }

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
    const double worth = bytes_.is_unsigned ? unsigned_bytes(layout_.element).worth
                                            : int8_byte_scale(layout_.element);
    const Tile scale =
        b_.mul({b_.load({buffers_.scales, unit, {}, {}}, {}), b_.constant(DType::kF32, worth)});
    return b_.fma(t, b_.splat(scale, {columns_}), sum);
  }

  // sum + products of the unit's bytes * scale of the weight
  Tile add_unit(ValueId unit, Tile sum) {
    const ValueId first = b_.mul(unit, b_.index(unit_));
    acc_ = first_sums(unit);
    const int wide = bytes_at_once();
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
    const double offset = excess();
    const bool has_zeros = layout_.zero_type != DType::kUndefined;
    if (!has_zeros && offset == 0) return t;
    Tile less = b_.constant(DType::kF32, -offset, {columns_});
    if (has_zeros) less = b_.sub(less, weight_.load_zero(b_, panel_, block_of(first)));
    return b_.fma(row_number(buffers_.sums, unit), less, t);
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
