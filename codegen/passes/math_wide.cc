// Functions of f32 computed in f64. An error of 2^-40 is as good as none here, so the polynomials
// (minimax fits, as in math_f32.cc) are short and special values mostly take care of themselves.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "codegen/passes/math_f32.h"
#include "codegen/passes/math_f64.h"

namespace tenon::codegen {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = 3.14159265358979323846;
constexpr double kLog2E = 1.44269504088896341;
constexpr double kLn2High = 0.69314718055829871, kLn2Low = 1.6465949582897082e-12;
constexpr double kRounder = 0x1.8p52;  // adding it leaves an integer in the low bits

Expr widen(Expr x) { return x.as(DType::kF64); }
Expr narrow(Expr x) { return x.as(DType::kF32); }

Expr copy_sign(Expr magnitude, Expr from) {
  constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
  Expr sign = from.bits(DType::kU64) & kSign;
  Expr plain = magnitude.bits(DType::kU64) & ~kSign;
  return (plain | sign).bits(DType::kF64);
}

// e^x for any x: what f32 cannot hold is large or small enough to become infinity or 0.
Expr wide_exp(Expr x) {
  x = at_most(at_least(x, -200.0), 200.0);
  Expr shifted = fma(x, kLog2E, kRounder);
  Expr n = shifted - kRounder;
  Expr r = fma(n, -kLn2Low, fma(n, -kLn2High, x));
  Expr p = polynomial(r, {0.50000000000000155, 0.16666666666609015, 0.041666666666476206,
                          0.0083333333720802191, 0.0013888888958879485, 0.00019841183522705056,
                          2.4801476905777102e-05, 2.7635738813175739e-06, 2.7636040116762522e-07});
  Expr power = ((shifted.bits(DType::kI64) << 52) + (int64_t{1023} << 52)).bits(DType::kF64);
  return fma(fma(p, r, 1.0), r, 1.0) * power;
}

// log(x), where `excess` is x - 1, known better than x itself when x is near 1.
Expr log_from(Expr x, Expr excess) {
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd, kOne = 0x3ff0000000000000;
  Expr moved = x.bits(DType::kU64) + (kOne - kSqrtHalf);
  Expr biased = (moved >> 52) & 0x7ff;
  // An integer below 2^52 as a double without an instruction for it.
  Expr exponent = (biased | 0x4330000000000000).bits(DType::kF64) - (0x1p52 + 1023.0);
  Expr mantissa = ((moved & 0x000fffffffffffff) + kSqrtHalf).bits(DType::kF64);
  Expr f = select({exponent == 0.0, excess, mantissa - 1.0});
  Expr s = f / (f + 2.0), q = s * s;  // log(1 + f) = 2 atanh(s)
  Expr p = polynomial(
      q, {0.33333333333333676, 0.1999999999970673, 0.14285714371342159, 0.11111099270109659,
          0.090917830813939671, 0.076570002797657757, 0.073982393230671836});
  Expr twice = s + s;
  Expr result = fma(exponent, kLn2High + kLn2Low, fma(twice * q, p, twice));
  result = select(x == 0.0, -kInfinity, result);
  result = select(x < 0.0, kNan, result);
  return select(x < kInfinity, result, x);
}

Expr wide_log(Expr x) { return log_from(x, x - 1.0); }
Expr wide_log1p(Expr u) { return log_from(u + 1.0, u); }

Expr wide_atan(Expr x) {
  constexpr double kTanEighth = 0.41421356237309503;  // tan(pi / 8)
  Expr a = abs(x);
  Expr above_one = a > 1.0;
  a = select(above_one, 1.0 / a, a);
  Expr above_eighth = a > kTanEighth;
  Expr below = a - 1.0, above = a + 1.0;
  Expr y = select(above_eighth, below / above, a), q = y * y;
  Expr p = polynomial(q, {-0.33333333331696569, 0.19999999685523906, -0.14285693590765991,
                          0.11110449851925386, -0.090791358805929312, 0.075685276578671731,
                          -0.058910127625010904, 0.030894022314846101});
  Expr angle = fma(y * q, p, y);
  angle = select(above_eighth, angle + kPi / 4, angle);
  angle = select(above_one, kPi / 2 - angle, angle);
  return copy_sign(angle, x);
}

// Bits of 2 / pi after the binary point.
constexpr std::array<uint64_t, 4> kTwoOverPi = {0xa2f9836e4e441529, 0xfc2757d1f534ddc0,
                                                0xdb6295993c439041, 0xfe5163abdebbc561};

// 53 bits of 2 / pi from bit `first` on, where that bit has this weight.
double two_over_pi_bits(int first, int weight) {
  double sum = 0;
  for (int i = 0; i < 53; ++i) {
    int bit = first + i;
    if (bit < 256 && (kTwoOverPi[bit / 64] >> (63 - bit % 64) & 1)) {
      sum += std::ldexp(1.0, weight - i);
    }
  }
  return sum;
}

// For each biased exponent of f32, 2^(exponent - 150) * 2 / pi modulo 4, as a sum of two doubles.
struct QuarterTurns {
  std::vector<double> high, low;
};

QuarterTurns quarter_turn_table() {
  QuarterTurns table;
  for (int biased = 0; biased < 256; ++biased) {
    int exponent = (biased == 0 ? 1 : biased) - 150;
    int first = std::max(0, exponent - 2);  // bits above are multiples of 4
    int weight = exponent - 1 - first;
    table.high.push_back(two_over_pi_bits(first, weight));
    table.low.push_back(two_over_pi_bits(first + 53, weight - 53));
  }
  table.high[255] = kNan;  // of infinity and NaN
  return table;
}

// |x| = quarter * pi / 2 + angle, |angle| <= pi / 4, exact for every f32 however large.
struct Turned {
  Expr quarter, sine, cosine;  // quarter: i64, only its low two bits count
};

Turned turn(Expr x) {
  Builder& b = x.builder();
  Expr bits = x.bits(DType::kI32) & 0x7fffffff;
  Expr exponent = bits >> 23, fraction = bits & 0x7fffff;
  Expr mantissa = select({exponent == 0, fraction, fraction | 0x800000}).as(DType::kF64);
  QuarterTurns table = quarter_turn_table();
  Expr high(b, b.lookup(b.table(DType::kF64, table.high), exponent.id()));
  Expr low(b, b.lookup(b.table(DType::kF64, table.low), exponent.id()));
  Expr turns = mantissa * high;
  Expr rest = fma(mantissa, low, fma(mantissa, high, -turns));
  Expr shifted = turns + kRounder;
  Expr r = ((turns - (shifted - kRounder)) + rest) * (kPi / 2), q = r * r;
  Expr sine = polynomial(q, {-0.16666666666631341, 0.0083333333252249373, -0.00019841263796643895,
                             2.7555352021906448e-06, -2.4761227657201868e-08});
  Expr cosine = polynomial(q, {0.041666666666601737, -0.0013888888878205532, 2.4801580940938522e-05,
                               -2.7555561468921735e-07, 2.0647368741310731e-09});
  Expr quarter = shifted.bits(DType::kI64), sine_of_r = fma(r * q, sine, r), fourth = q * q;
  return {quarter, sine_of_r, fma(fourth, cosine, fma(q, -0.5, 1.0))};
}

Expr is_set(Expr integer, int64_t bit) { return (integer & bit) != 0; }

}  // namespace

Expr sin_f32(Expr x) {
  Turned t = turn(x);
  Expr value = select(is_set(t.quarter, 1), t.cosine, t.sine);
  value = select({is_set(t.quarter, 2), -value, value});
  Expr wide = widen(x);
  return narrow(select({wide < 0.0, -value, select(wide == 0.0, wide, value)}));
}

Expr cos_f32(Expr x) {
  Turned t = turn(x);
  Expr value = select(is_set(t.quarter, 1), t.sine, t.cosine);
  return narrow(select({is_set(t.quarter + 1, 2), -value, value}));
}

Expr tan_f32(Expr x) {
  Turned t = turn(x);
  Expr odd = is_set(t.quarter, 1);
  Expr over = select(odd, -t.cosine, t.sine), under = select(odd, t.sine, t.cosine);
  Expr value = over / under;
  Expr wide = widen(x);
  return narrow(select({wide < 0.0, -value, select(wide == 0.0, wide, value)}));
}

Expr atan_f32(Expr x) { return narrow(wide_atan(widen(x))); }

Expr asin_f32(Expr x) {
  Expr w = widen(x);
  Expr below = 1.0 - w, above = w + 1.0;
  return narrow(wide_atan(w / sqrt(below * above)));
}

Expr acos_f32(Expr x) {
  Expr w = widen(x);
  Expr below = 1.0 - w, above = w + 1.0;
  return narrow(wide_atan(sqrt(below / above)) * 2.0);
}

Expr sinh_f32(Expr x) {
  Expr w = widen(x), q = w * w;
  Expr e = wide_exp(w);
  Expr p = polynomial(q, {0.16666666665864033, 0.0083333336331568256, 0.00019840921762291145,
                          2.7716509287549282e-06});
  Expr near_zero = fma(w * q, p, w);
  return narrow(select({abs(w) < 0.5, near_zero, (e - 1.0 / e) * 0.5}));
}

Expr cosh_f32(Expr x) {
  Expr e = wide_exp(widen(x));
  return narrow((e + 1.0 / e) * 0.5);
}

Expr asinh_f32(Expr x) {
  Expr w = widen(x), a = abs(w), square = w * w;
  Expr u = a + square / (sqrt(square + 1.0) + 1.0);
  return narrow(select({a < kInfinity, copy_sign(wide_log1p(u), w), w}));
}

Expr acosh_f32(Expr x) {
  Expr t = widen(x) - 1.0;
  Expr result = wide_log1p(t + sqrt(t * (t + 2.0)));
  return narrow(select(t < 0.0, kNan, result));
}

Expr atanh_f32(Expr x) {
  Expr w = widen(x), a = abs(w);
  Expr twice = a + a, below = 1.0 - a, half = wide_log1p(twice / below) * 0.5;
  Expr outside = a > 1.0;
  return narrow(select(outside, kNan, copy_sign(half, w)));
}

Expr pow_f32(Expr x, Expr y) {
  Expr base = widen(x), power = widen(y), a = abs(base);
  Expr result = wide_exp(power * wide_log(a));
  return narrow(with_power_edges(base, power, result));
}

Expr atan2_f32(Expr y, Expr x) {
  Expr down = widen(x), up = widen(y), a = abs(up), b = abs(down);
  Expr ratio = a / b;
  Expr a_zero = a == 0.0, b_zero = b == 0.0;
  ratio = select(a_zero & b_zero, 0.0, ratio);
  Expr a_infinite = a == kInfinity, b_infinite = b == kInfinity;
  ratio = select(a_infinite & b_infinite, 1.0, ratio);
  Expr angle = wide_atan(ratio);
  angle = select({down.bits(DType::kI64) < 0, kPi - angle, angle});
  return narrow(copy_sign(angle, up));
}

}  // namespace tenon::codegen
