#include "kernels/llvm/scaled_dot/digit_row.h"

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

constexpr int64_t kPerTask = 1024;
constexpr int64_t kMantissaBits = 23;
constexpr int64_t kBitsBelowLargest = 29;  // |x| < 2 * 2^exponent becomes less than 2^30
// Signed digits: a byte from 128 on is negative and carries one to the next.
constexpr int64_t kCarries = 0x00808080;
constexpr int64_t kTopSign = -(int64_t{1} << 31);

int64_t power_bits(int64_t exponent) { return exponent << kMantissaBits; }

class DigitRowWriter {
 public:
  DigitRowWriter(LaunchWriter& writer, BufferArgument a, const DigitRow& row, int64_t k,
                 DType digit_type)
      : b_(writer.builder),
        k_(k),
        digit_type_(digit_type),
        from_(writer.buffer("a", DType::kF32, a)),
        digits_(writer.buffer("digits", digit_type, row.digits)),
        scales_(writer.buffer("scales", DType::kF32, row.scales)) {}

  void write_unit(ValueId number, int64_t unit, bool split_eights, double factor) {
    const ValueId at = b_.mul(number, b_.index(unit));
    const int width = static_cast<int>(unit);
    const Tile x = b_.load({from_, at}, {width});
    const Tile power = power_below(b_.reduce(Fn::kMax, b_.unary(Fn::kAbs, x), 0));
    const Tile scale = b_.mul({b_.bitcast(b_.sub(power, bits(kBitsBelowLargest)), DType::kF32),
                               b_.constant(DType::kF32, factor)});
    // 0 times what is not finite is NaN.
    const Tile nothing = b_.reduce(Fn::kAdd, b_.mul(x, b_.constant(DType::kF32, 0, {width})), 0);
    b_.store({scales_, number}, b_.add(scale, nothing));
    const Tile inverse = b_.add({b_.sub(bits(2 * 127), power), bits(kBitsBelowLargest)});
    inverse_ = b_.bitcast(inverse, DType::kF32);
    if (!split_eights) return write({from_, at}, at, {}, {width});
    const std::vector<int> half = {width / 8, 4};
    const std::vector<ValueId> spread = {b_.index(8), b_.index(2)};
    const std::vector<ValueId> packed = {b_.index(8), b_.index(1)};
    write({from_, at, spread}, at, packed, half);
    const codegen::Access second{from_, b_.add(at, b_.index(1)), spread};
    write(second, b_.add(at, b_.index(4)), packed, half);
  }

 private:
  Tile bits(int64_t exponent) { return b_.integer_constant(DType::kI32, power_bits(exponent)); }

  // The exponent bits of the power of two below `largest`, which is taken as 2^-96 at least.
  Tile power_below(Tile largest) {
    const Tile enough = b_.binary(Fn::kMax, largest, b_.constant(DType::kF32, 0x1p-96));
    return b_.binary(Fn::kAnd, {b_.bitcast(enough, DType::kI32),
                                b_.integer_constant(DType::kI32, power_bits(255))});
  }

  void write(const codegen::Access& source, ValueId to, const std::vector<ValueId>& strides,
             const std::vector<int>& shape) {
    const auto number = [&](int64_t value) {
      return b_.integer_constant(DType::kI32, value, shape);
    };
    const Tile scaled = b_.mul({b_.load(source, shape), b_.splat(inverse_, shape)});
    Tile word = b_.cast(b_.unary(Fn::kRound, scaled), DType::kI32);
    if (digit_type_ == DType::kI8) {
      word = b_.binary(Fn::kXor, {b_.add(word, number(kCarries)), number(kCarries)});
    } else {
      word = b_.binary(Fn::kXor, word, number(kTopSign));
    }
    for (int digit = 0; digit < kDigits; ++digit) {
      const Tile low = digit == 0 ? word : b_.binary(Fn::kShiftRight, word, number(8 * digit));
      const ValueId at = b_.add(to, b_.index(digit * k_));
      b_.store({digits_, at, strides}, b_.cast(low, digit_type_));
    }
  }

  Builder& b_;
  const int64_t k_;
  const DType digit_type_;
  const ValueId from_, digits_, scales_;
  Tile inverse_ = codegen::kNone;
};

}  // namespace

DigitRow digit_row(const ScaledDotProblem& problem, BufferArgument a, const Dim& one, int64_t unit,
                   bool split_eights, DType digit_type, double factor, Lowered& lowered) {
  const int64_t k = problem.k.value(), units = k / unit;
  DigitRow row;
  row.digits = lowered.add_scratch(Dim(kDigits * k));
  row.scales = lowered.add_scratch(Dim(4 * units));

  LaunchWriter writer("digit_row");
  Builder& b = writer.builder;
  DigitRowWriter digits(writer, a, row, k, digit_type);
  const int64_t units_per_task = std::max<int64_t>(1, kPerTask / unit);
  const ValueId first = b.mul({b.task(), b.index(units_per_task)});
  const ValueId last = b.min({b.add(first, b.index(units_per_task)), b.index(units)});
  b.loop(first, last, b.index(1), {}, [&](ValueId number, auto) {
    digits.write_unit(number, unit, split_eights, factor);
    return std::vector<ValueId>{};
  });
  const int64_t tasks = (units + units_per_task - 1) / units_per_task;
  lowered.launches.push_back(writer.finish(tasks * one, std::min(k, kPerTask) * 2));
  return row;
}

}  // namespace tenon::kernels
