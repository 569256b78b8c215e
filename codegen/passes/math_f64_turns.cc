// Sine, cosine and tangent of f64, whose range reduction holds for every number: 2 / pi has as many
// bits as the largest exponent asks for.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "codegen/passes/math_f64.h"
#include "codegen/passes/twofold.h"

namespace tenon::codegen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kHalfPi = 0x1.921fb54442d18p+0, kHalfPiRest = 0x1.1a62633145c07p-54;
constexpr double kRounder = 0x1.8p52;  // adding it leaves an integer in the low bits
constexpr int kBits = 53;              // of a double

// Bits of 2 / pi after the binary point.
constexpr std::array<uint64_t, 20> kTwoOverPi = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

// As many bits of 2 / pi as a double has, from bit `first` on, where that bit has this weight.
double two_over_pi_bits(int first, int weight) {
  double sum = 0;
  for (int i = 0; i < kBits; ++i) {
    const auto bit = static_cast<size_t>(first + i);
    if (kTwoOverPi[bit / 64] >> (63 - bit % 64) & 1) sum += std::ldexp(1.0, weight - i);
  }
  return sum;
}

// A number from 1 on is a whole one below 2^56 times 2^(4 j - 52), 0 <= j < 256. Entry j is
// 2^(4 j - 52) * 2 / pi modulo 4, as a sum of four doubles: 40 bits more than the nearest number to
// a multiple of pi / 2 needs.
constexpr int kStep = 4, kEntries = 256;
using Pieces = std::array<std::vector<double>, 4>;

Pieces quarter_turn_table() {
  Pieces pieces;
  for (int j = 0; j < kEntries; ++j) {
    const int exponent = kStep * j - 52;
    const int first = std::max(0, exponent - 2);  // bits above are multiples of 4
    const int weight = exponent - 1 - first;
    for (int piece = 0; piece < 4; ++piece) {
      const int skipped = piece * kBits;
      pieces[static_cast<size_t>(piece)].push_back(
          two_over_pi_bits(first + skipped, weight - skipped));
    }
  }
  return pieces;
}

// Between -2 and 2, and exactly that: a small number stays as it is.
Expr modulo_four(Expr x) {
  Expr turns = round_even(x * 0.25);
  return fma(turns, -4.0, x);
}

// |x| = quarter * pi / 2 + angle, |angle| <= pi / 4 or |x| < 1.
struct Turned {
  Expr quarter;  // i64, only its low two bits count
  Twofold angle;
};

Turned turn(Expr x) {
  Builder& b = x.builder();
  Expr bits = x.bits(DType::kI64) & std::numeric_limits<int64_t>::max();
  Expr above_one = at_most(at_least(bits >> 52, 1023), 2046) - 1023;
  Expr field = ((above_one & (kStep - 1)) + 1075) << 52;
  Expr number = ((bits & 0xfffffffffffff) | field).bits(DType::kF64);
  Expr entry = (above_one >> 2).as(DType::kI32);
  std::vector<Expr> piece;
  for (const std::vector<double>& values : quarter_turn_table()) {
    piece.emplace_back(b, b.lookup(b.table(DType::kF64, values), entry.id()));
  }
  Twofold first = exact_product(number, piece[0]), second = exact_product(number, piece[1]);
  Twofold third = exact_product(number, piece[2]);
  Expr fourth = number * piece[3];
  Expr from_high = modulo_four(first.high), from_low = modulo_four(first.low);
  Twofold turns = exact_sum(from_high, from_low);
  Twofold all = exact_sum(turns.high, modulo_four(second.high));
  Expr shifted = all.high + kRounder;
  Expr whole = shifted - kRounder;
  Expr fraction = all.high - whole;
  Expr rest = third.low + fourth;
  for (Expr part : {turns.low, all.low, second.low, third.high}) {
    Twofold next = exact_sum(fraction, part);
    fraction = next.high;
    rest = rest + next.low;
  }
  Twofold angle = product(exact_sum(fraction, rest), twofold_like(x, kHalfPi, kHalfPiRest));
  Expr a = abs(x);
  Expr is_small = a < 1.0;
  Expr none = shifted.bits(DType::kI64) & 0;
  Expr quarter = select({is_small, none, shifted.bits(DType::kI64)});
  Expr high = select(is_small, a, angle.high);
  return {quarter, {high, select(is_small, 0.0, angle.low)}};
}

Expr sine_of(Twofold angle) {
  Expr q = angle.high * angle.high;
  Expr p = polynomial(
      q, {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,
          -1.0 / 1307674368000, 1.0 / 355687428096000, -1.0 / 121645100408832000});
  Expr rest = fma(q, -0.5, 1.0) * angle.low;
  Expr cube = angle.high * q;
  return angle.high + fma(cube, p, rest);
}

Expr cosine_of(Twofold angle) {
  Expr q = angle.high * angle.high;
  Expr p = polynomial(
      q, {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200,
          1.0 / 20922789888000, -1.0 / 6402373705728000, 1.0 / 2432902008176640000});
  Expr half = q * 0.5;
  Expr near = 1.0 - half;
  Expr lost = (1.0 - near) - half;
  Expr rest = fma(-angle.high, angle.low, lost);
  Expr square = q * q;
  return near + fma(square, p, rest);
}

Expr is_set(Expr integer, int64_t bit) { return (integer & bit) != 0; }

// Infinity has no angle; 0 and what a sine cannot be told from are x itself.
Expr odd_edges(Expr x, Expr of_magnitude) {
  Expr value = select({x < 0.0, -of_magnitude, of_magnitude});
  value = select(abs(x) < kInfinity, value, kNan);
  return select(x == 0.0, x, value);
}

}  // namespace

Expr sin_f64(Expr x) {
  Turned t = turn(x);
  Expr odd = is_set(t.quarter, 1);
  Expr cosine = cosine_of(t.angle);
  Expr value = select(odd, cosine, sine_of(t.angle));
  value = select({is_set(t.quarter, 2), -value, value});
  return odd_edges(x, value);
}

Expr cos_f64(Expr x) {
  Turned t = turn(x);
  Expr odd = is_set(t.quarter, 1);
  Expr cosine = cosine_of(t.angle);
  Expr value = select(odd, sine_of(t.angle), cosine);
  value = select({is_set(t.quarter + 1, 2), -value, value});
  return select(abs(x) < kInfinity, value, kNan);
}

Expr tan_f64(Expr x) {
  Turned t = turn(x);
  Expr odd = is_set(t.quarter, 1);
  Expr sine = sine_of(t.angle), cosine = cosine_of(t.angle);
  Expr over = select({odd, -cosine, sine}), under = select(odd, sine, cosine);
  return odd_edges(x, over / under);
}

}  // namespace tenon::codegen
