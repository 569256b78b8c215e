#include "kernels/llvm/scaled_dot/gemv_digits.h"

#include "kernels/llvm/scaled_dot/byte_weight.h"
#include "kernels/llvm/scaled_dot/gemm_int8.h"
#include "kernels/llvm/scaled_dot/gemv.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

// Below, the launch that makes digits costs as much as its reader gains.
constexpr int64_t kFewestWeights = 1 << 16;

class DigitGemv {
 public:
  DigitGemv(LaunchWriter& writer, const WeightReader& weight, const DigitBuffers& buffers)
      : b_(writer.builder),
        weight_(weight),
        layout_(weight.layout),
        buffers_(buffers),
        bytes_(b_, layout_, buffers.weight_bytes, /*zero_offset=*/true),
        columns_(layout_.columns),
        unit_(int8_unit(layout_)),
        panel_(b_.task()) {}

  void emit(Epilogue& epilogue) {
    epilogue.begin();
    const Tile zero = b_.constant(DType::kF32, 0, {columns_});
    const Tile total = b_.loop({b_.index(0), b_.index(layout_.k / unit_), b_.index(1)}, {zero},
                               [&](ValueId unit, auto carried) -> std::vector<ValueId> {
                                 return {add_unit(unit, carried[0])};
                               })[0];
    const ValueId column = b_.mul(panel_, b_.index(columns_));
    const ValueId extent = layout_.n % columns_ == 0 ? kNone : b_.sub(b_.index(layout_.n), column);
    const Epilogue::Place place{b_.index(0), column, extent};
    epilogue.emit(place, or_sum_of_floats(total));
  }

 private:
  bool is_unsigned() const { return b_.type(buffers_.digits).dtype == DType::kU8; }
  // sdot takes four bytes from any lane of a register; vpdpbusd reads them from memory.
  int bytes_at_once() const { return !is_unsigned() && unit_ % 16 == 0 ? 16 : 4; }

  Tile add_unit(ValueId unit, Tile sum) {
    const ValueId first = b_.mul(unit, b_.index(unit_));
    const Tile zeros = zero_bytes(first);
    Tile acc = b_.integer_constant(DType::kI32, 0, {kDigits, columns_});
    Tile excess = b_.integer_constant(DType::kI32, 0, {1, columns_});
    Tile row = kNone;
    for (int64_t k = 0; k < unit_; k += 4) {
      if (k % bytes_.k_per_load() == 0) {
        groups_ = bytes_.load(b_, panel_, b_.add(first, b_.index(k)));
      }
      Tile codes = groups_[static_cast<size_t>(k % bytes_.k_per_load() / 4)];
      if (zeros != kNone) codes = b_.sub(codes, zeros);
      if (k % bytes_at_once() == 0) row = load_digits(b_.add(first, b_.index(k)));
      const Tile four = b_.slice(row, {0, k % bytes_at_once()}, {kDigits, 4});
      acc = b_.dot_i8(acc, four, codes);
      if (is_unsigned()) {
        excess = b_.dot_i8(excess, b_.integer_constant(DType::kU8, 128, {1, 4}), codes);
      }
    }
    const Tile scaled =
        layout_.scale_type == DType::kUndefined
            ? number_of(acc, excess)
            : b_.mul({number_of(acc, excess), weight_.load_scale(b_, panel_, block_of(first))});
    return b_.fma(scaled, b_.splat(b_.load({buffers_.scales, unit, {}, {}}, {}), {columns_}), sum);
  }

  Tile load_digits(ValueId k) {
    return b_.load({buffers_.digits, k, {b_.index(layout_.k), b_.index(1)}},
                   {kDigits, bytes_at_once()});
  }

  // Zero points of the unit's block, once for each of four bytes.
  Tile zero_bytes(ValueId first) {
    if (layout_.zero_type == DType::kUndefined) return kNone;
    const Tile zero = b_.cast(weight_.load_zero(b_, panel_, block_of(first)), DType::kI8);
    return b_.broadcast(b_.reshape(zero, {columns_, 1}), {columns_, 4});
  }

  // acc[0] + 256 acc[1] + 65536 acc[2] + …, rounded twice: pairs of digits are exact in i32.
  Tile number_of(Tile acc, Tile excess) {
    const auto digit = [&](int64_t i) {
      return b_.reshape(b_.slice(acc, {i, 0}, {1, columns_}), {columns_});
    };
    const auto pair = [&](Tile high, Tile low) {
      const Tile base = b_.integer_constant(DType::kI32, 256, {columns_});
      return b_.cast(b_.add(b_.mul(high, base), low), DType::kF32);
    };
    Tile top = digit(3);
    if (is_unsigned()) top = b_.sub(top, b_.reshape(excess, {columns_}));
    const Tile upper = pair(top, digit(2)), factor = b_.constant(DType::kF32, 65536, {columns_});
    const Tile second = digit(1), first = digit(0);
    return b_.fma(upper, factor, pair(second, first));
  }

  Tile or_sum_of_floats(Tile total) {
    const Tile is_nan = b_.compare(Fn::kNotEqual, total, total);
    const Tile number = b_.select(
        {is_nan, b_.constant(DType::kF32, 1, {columns_}), b_.constant(DType::kF32, 0, {columns_})});
    const Tile any =
        b_.compare(Fn::kNotEqual, {b_.reduce(Fn::kMax, number, 0), b_.constant(DType::kF32, 0)});
    return b_.branch(
        any,
        [&] {
          return std::vector<ValueId>{gemv_sum(b_, weight_, buffers_.a, panel_, GemvCode::kShort)};
        },
        [&] { return std::vector<ValueId>{total}; })[0];
  }

  ValueId block_of(ValueId k) { return b_.div(k, b_.index(layout_.block)); }

  Builder& b_;
  const WeightReader& weight_;
  const WeightLayout& layout_;
  const DigitBuffers& buffers_;
  ByteWeight bytes_;
  const int columns_;
  const int64_t unit_;
  const ValueId panel_;
  std::vector<Tile> groups_;
};

}  // namespace

Support supports_digits(const ir::Graph& graph, const ScaledDotProblem& problem,
                        const WeightLayout& layout, const codegen::HostTarget& host) {
  if (Support answer = supports_int8(layout, host); !answer) return answer;
  if (!host.has("dotprod") && !host.has("avx512vnni") && !host.has("avxvnni")) {
    return Support::no("this CPU has neither dotprod nor VNNI, and f32 is as fast");
  }
  if (layout.n * layout.k < kFewestWeights) return Support::no("the weight is small");
  const ir::ValueId zeros = problem.dot.scale_b.zero_point;
  if (zeros == ir::kNoValue) return Support::yes();
  if (layout.bits != 4) return Support::no("8-bit weights minus their zero points do not fit int8");
  if (is_floating(graph.value(zeros).dtype)) return Support::no("zero points are not integers");
  return Support::yes();
}

void emit_gemv_digits(LaunchWriter& writer, const WeightReader& weight, const DigitBuffers& buffers,
                      Epilogue& epilogue) {
  DigitGemv(writer, weight, buffers).emit(epilogue);
}

}  // namespace tenon::kernels
