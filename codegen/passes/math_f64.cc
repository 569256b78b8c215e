// Exponentials and logarithms carry what rounding takes off (twofold.h) where a result would show
// it; polynomials are Taylor's, and Chebyshev fits where those have too many terms.
#include "codegen/passes/math_f64.h"

#include <limits>

#include "codegen/passes/twofold.h"

namespace tenon::codegen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLog2E = 1.44269504088896341;
constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2Rest = 0x1.abc9e3b39803fp-56;
constexpr double kInverseLn2 = 0x1.71547652b82fep+0, kInverseLn2Rest = 0x1.777d0ffda0d24p-56;
constexpr double kHalfPi = 0x1.921fb54442d18p+0, kHalfPiRest = 0x1.1a62633145c07p-54;
constexpr double kRounder = 0x1.8p52;  // adding it leaves an integer in the low bits

Expr copy_sign(Expr magnitude, Expr from) {
  constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
  Expr sign = from.bits(DType::kU64) & kSign;
  Expr plain = magnitude.bits(DType::kU64) & ~kSign;
  return (plain | sign).bits(DType::kF64);
}

// --- e^x ---

// x = n ln 2 + r, |r| <= ln 2 / 2.
struct Reduced {
  Expr n, r;  // n: i64
};

Expr low_integer(Expr shifted) { return (shifted.bits(DType::kI64) << 32) >> 32; }

Reduced reduce_by_ln2(Expr x) {
  Expr shifted = fma(x, kLog2E, kRounder);
  Expr n = shifted - kRounder;
  Expr r = fma(n, -kLn2Rest, fma(n, -kLn2, x));
  return {low_integer(shifted), r};
}

// e^r - 1.
Expr small_expm1(Expr r) {
  Expr p = polynomial(
      r, {1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
          1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200});
  Expr square = r * r;
  return fma(square, p, r);
}

Expr power_of_two(Expr n) { return ((n + 1023) << 52).bits(DType::kF64); }

// y * 2^n in two steps, so that neither factor leaves the range and only the last product rounds.
Expr scale(Expr y, Expr n) {
  Expr half = n >> 1;
  Expr once = y * power_of_two(half);
  return once * power_of_two(n - half);
}

Expr in_range_of_exp(Expr x) {
  return at_most(at_least(x, -760.0), 760.0);
}  // 0 and infinity beyond

Expr half_of_exp(Expr x) {
  Reduced reduced = reduce_by_ln2(in_range_of_exp(x));
  Expr y = small_expm1(reduced.r) + 1.0;
  return scale(y, reduced.n - 1);
}

// e^x - 1 for 0 <= x < 40.
Expr expm1(Expr x) {
  Reduced reduced = reduce_by_ln2(x);
  Expr p = small_expm1(reduced.r);
  Expr power = power_of_two(reduced.n);
  return fma(power, p, power - 1.0);
}

Expr exp_twofold(Twofold x) {
  Expr bounded = in_range_of_exp(x.high);
  Expr inside = abs(x.high) < 760.0;
  Expr rest = select(inside, x.low, x.low.like(0.0));
  Reduced reduced = reduce_by_ln2(bounded);
  Expr y = small_expm1(reduced.r + rest) + 1.0;
  return scale(y, reduced.n);
}

// --- log(x) ---

// log(x) = exponent ln 2 + log(1 + f): of a positive finite x.
struct Logarithm {
  Expr exponent;  // a whole number
  Twofold of_mantissa;
};

// log(1 + f) = 2 s (1 + s^2 / 3 + s^4 / 5 + …), s = f / (2 + f), |s| < 0.172
Twofold log_of_mantissa(Expr f) {
  Expr two = f.like(2.0);
  Twofold divisor = ordered_sum(two, f);
  Expr s = f / divisor.high;
  Expr rest = fma(-s, divisor.high, f);
  rest = fma(-s, divisor.low, rest);
  Twofold root{s, rest / divisor.high};
  Twofold q = product(root, root);
  Expr p = polynomial(q.high, {1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17,
                               1.0 / 19, 1.0 / 21, 1.0 / 23});
  Twofold third = twofold_like(f, 0x1.5555555555555p-2, 0x1.5555555555555p-56);
  Twofold tail = product(q, sum(third, exact_product(q.high, p)));
  Twofold twice{root.high + root.high, root.low + root.low};
  return sum(twice, product(twice, tail));
}

Logarithm logarithm(Expr x) {
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd, kOne = 0x3ff0000000000000;
  Expr tiny = x < 0x1p-1022;
  Expr large = x * 0x1p54;
  Expr moved = select(tiny, large, x).bits(DType::kU64) + (kOne - kSqrtHalf);
  Expr biased = (moved >> 52) & 0x7ff;
  // An integer below 2^52 as a double without an instruction for it.
  Expr exponent = (biased | 0x4330000000000000).bits(DType::kF64) - (0x1p52 + 1023.0);
  Expr lower = exponent - 54.0;
  exponent = select(tiny, lower, exponent);
  Expr mantissa = ((moved & 0x000fffffffffffff) + kSqrtHalf).bits(DType::kF64);
  return {exponent, log_of_mantissa(mantissa - 1.0)};
}

Twofold log_twofold(Expr x) {
  Logarithm parts = logarithm(x);
  Twofold whole = exact_product(parts.exponent, x.like(kLn2));
  whole.low = fma(parts.exponent, kLn2Rest, whole.low);
  return sum(whole, parts.of_mantissa);
}

// log(1 + u) for u >= 0, where `sum` is 1 + u or a number so large that 1 does not count.
Twofold log_of_sum(Twofold sum_of) {
  Twofold log = log_twofold(sum_of.high);
  Expr rest = sum_of.low / sum_of.high;
  return ordered_sum(log.high, log.low + rest);
}

Expr log_edges(Expr x, Expr result) {
  result = select(x == 0.0, -kInfinity, result);
  result = select(x < 0.0, kNan, result);
  return select(x < kInfinity, result, x);  // infinity and NaN
}

// Numbers whose square is their own size: 1 does not count beside it.
constexpr double kLarge = 0x1p28;

// log(1 + u), or log(2 a) where a is large.
Expr log1p_or_double(Expr u, Expr a) {
  Expr is_large = a >= kLarge;
  Twofold plus_one = exact_sum(u.like(1.0), u);
  Expr high = select(is_large, a, plus_one.high);
  Expr low = select(is_large, a.like(0.0), plus_one.low);
  Twofold log = log_of_sum({high, low});
  Expr doubled = log.high + kLn2;
  return select(is_large, doubled, log.high);
}

// --- angles ---

// atan(y) for |y| <= tan(pi / 8).
Expr small_atan(Expr y) {
  Expr q = y * y;
  Expr p = polynomial(
      q, {-0.3333333333333333, 0.19999999999999804, -0.14285714285659806, 0.11111111105153429,
          -0.09090908753400499, 0.07692296372129964, -0.06666424833613552, 0.05878928398517232,
          -0.052304498567092406, 0.04551573086664191, -0.034570044186095536, 0.016285183029865667});
  Expr cube = y * q;
  return fma(cube, p, y);
}

// asin(x) for |x| <= 1/2.
Expr small_asin(Expr x) {
  Expr q = x * x;
  Expr p = polynomial(
      q, {0.16666666666666669, 0.07499999999998425, 0.04464285714637338, 0.030381944137085216,
          0.022372173002005596, 0.017352391265909227, 0.013971235301124539, 0.011478952690257387,
          0.010324318288744113, 0.00545087818772055, 0.017419357964884856, -0.014881409392818066,
          0.02877844261259304});
  Expr cube = x * q;
  return fma(cube, p, x);
}

// asin(sqrt(z)) for z <= 1/4, twice.
Expr twice_asin_of_root(Expr z) {
  Expr half = small_asin(sqrt(z));
  return half + half;
}

// The angle whose tangent is a / b for a, b >= 0, of which one at least is not 0.
Expr atan_of_ratio(Expr ratio) {
  constexpr double kTanEighth = 0.41421356237309503;  // tan(pi / 8)
  Expr above_one = ratio > 1.0;
  Expr inverse = 1.0 / ratio;
  Expr a = select(above_one, inverse, ratio);
  Expr above_eighth = a > kTanEighth;
  Expr below = a - 1.0, above = a + 1.0;
  Expr angle = small_atan(select({above_eighth, below / above, a}));
  Expr with_eighth = (angle + kHalfPiRest / 2) + kHalfPi / 2;
  angle = select(above_eighth, with_eighth, angle);
  Expr rest = angle - kHalfPiRest;
  return select(above_one, kHalfPi - rest, angle);
}

// --- erf(x) ---

// erf(x) for |x| <= 1.
Expr small_erf(Expr x) {
  Expr q = x * x;
  Expr p = polynomial(
      q, {0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
          0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271,
          -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
          1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11});
  return fma(x, p, x);
}

// e^(x^2) (1 - erf(x)) for 1 <= x <= 6, from t = 2 / (x + 2).
Expr scaled_rest_of_erf(Expr x) {
  Expr t = 2.0 / (x + 2.0);
  return polynomial(
      t, {-2.1256899384485014e-08, 0.282095755989204, 0.2820742956673996, 0.24710410438044123,
          0.17380885696053636, 0.1007949844936425, -0.09334972202568022, 0.3055026106391028,
          -1.2172725587499706, 2.9528318865808805, -5.857426042461111, 9.200009049449324,
          -10.688154549855108, 8.912948088997053, -5.210532579524214, 2.040189283360036,
          -0.4831703108541415, 0.05254683684672345});
}

}  // namespace

Expr exp_f64(Expr x) {
  Reduced reduced = reduce_by_ln2(in_range_of_exp(x));
  Expr y = small_expm1(reduced.r) + 1.0;
  return scale(y, reduced.n);
}

Expr exp2_f64(Expr x) {
  Expr bounded = at_most(at_least(x, -1100.0), 1100.0);
  Expr shifted = bounded + kRounder;
  Expr r = bounded - (shifted - kRounder);
  Expr y = small_expm1(r * kLn2) + 1.0;
  return scale(y, low_integer(shifted));
}

Expr log_f64(Expr x) { return log_edges(x, log_twofold(x).high); }

Expr log2_f64(Expr x) {
  Logarithm parts = logarithm(x);
  Twofold scaled = product(parts.of_mantissa, twofold_like(x, kInverseLn2, kInverseLn2Rest));
  Twofold whole = exact_sum(parts.exponent, scaled.high);
  Expr rest = whole.low + scaled.low;
  return log_edges(x, whole.high + rest);
}

Expr tanh_f64(Expr x) {
  Expr a = at_most(abs(x), 20.0);
  Expr e = expm1(a + a);
  Expr below = e + 2.0;
  return copy_sign(e / below, x);
}

Expr sinh_f64(Expr x) {
  Expr a = abs(x);
  Expr e = expm1(at_most(a, 22.0));
  Expr above = e + 1.0;
  Expr near_zero = (e + e / above) * 0.5;
  Expr is_near = a < 22.0;
  return copy_sign(select({is_near, near_zero, half_of_exp(a)}), x);
}

Expr cosh_f64(Expr x) {
  Expr a = abs(x);
  Expr half = half_of_exp(a);
  Expr inverse = 0.25 / half;
  return half + inverse;
}

Expr erf_f64(Expr x) {
  Expr a = at_most(abs(x), 6.0);
  Expr square = a * a;
  Expr rest = exp_f64(-square);
  rest = rest * scaled_rest_of_erf(a);
  Expr far = 1.0 - rest;
  Expr is_near = a < 1.0;
  return copy_sign(select({is_near, small_erf(a), far}), x);
}

Expr atan_f64(Expr x) { return copy_sign(atan_of_ratio(abs(x)), x); }

Expr asin_f64(Expr x) {
  Expr a = abs(x);
  Expr is_small = a < 0.5;
  Expr far = twice_asin_of_root((1.0 - a) * 0.5);
  Expr rest = far - kHalfPiRest;
  Expr near_zero = small_asin(a);
  return copy_sign(select(is_small, near_zero, kHalfPi - rest), x);
}

Expr acos_f64(Expr x) {
  Expr a = abs(x);
  Expr is_small = a < 0.5;
  Expr near_zero = small_asin(x) - kHalfPiRest;
  Expr of_small = kHalfPi - near_zero;
  Expr far = twice_asin_of_root((1.0 - a) * 0.5);
  Expr rest = far - 2 * kHalfPiRest;
  Expr of_negative = 2 * kHalfPi - rest;
  Expr of_large = select({x < 0.0, of_negative, far});
  return select(is_small, of_small, of_large);
}

Expr asinh_f64(Expr x) {
  Expr a = abs(x);
  Expr bounded = at_most(a, kLarge);
  Expr square = bounded * bounded;
  Expr root = sqrt(square + 1.0);
  Expr below = root + 1.0;
  Expr u = bounded + square / below;
  Expr result = copy_sign(log1p_or_double(u, a), x);
  return select(a < kInfinity, result, x);
}

Expr acosh_f64(Expr x) {
  Expr t = at_most(x, kLarge) - 1.0;
  Expr above = t + 2.0;
  Expr root = sqrt(t * above);
  Expr result = log1p_or_double(t + root, x);
  result = select(x < 1.0, kNan, result);
  return select(x < kInfinity, result, x);
}

Expr atanh_f64(Expr x) {
  Expr a = abs(x);
  Expr twice = a + a, below = 1.0 - a;
  Twofold plus_one = exact_sum(x.like(1.0), twice / below);
  Expr half = log_of_sum(plus_one).high * 0.5;
  half = select(a == 1.0, kInfinity, half);
  Expr result = select(a > 1.0, kNan, copy_sign(half, x));
  return select({is_nan(x), x, result});
}

Expr with_power_edges(Expr x, Expr y, Expr magnitude) {
  Expr half = y * 0.5;
  Expr whole = trunc(y) == y, odd = whole & (trunc(half) != half);
  Expr negative = x.bits(DType::kI64) < 0;
  Expr result = select({negative & odd, -magnitude, magnitude});
  Expr below_zero = x<0.0, finite = x> - kInfinity, negative_finite = below_zero & finite;
  Expr undefined = negative_finite & !whole;
  result = select(undefined, kNan, result);
  Expr no_power = y == 0.0, of_one = x == 1.0, plain_one = no_power | of_one;
  Expr of_minus_one = x == -1.0, endless = abs(y) == kInfinity;
  Expr one = plain_one | (of_minus_one & endless);
  return select(one, 1.0, result);
}

Expr pow_f64(Expr x, Expr y) {
  Expr a = abs(x);
  Twofold log = log_twofold(a);
  Expr high = log_edges(a, log.high);
  Expr exponent = y * high;
  Expr rest = fma(y, high, -exponent);
  rest = fma(y, log.low, rest);
  return with_power_edges(x, y, exp_twofold({exponent, rest}));
}

Expr atan2_f64(Expr y, Expr x) {
  Expr a = abs(y), b = abs(x);
  Expr ratio = a / b;
  Expr a_zero = a == 0.0, b_zero = b == 0.0;
  ratio = select(a_zero & b_zero, 0.0, ratio);
  Expr a_infinite = a == kInfinity, b_infinite = b == kInfinity;
  ratio = select(a_infinite & b_infinite, 1.0, ratio);
  Expr angle = atan_of_ratio(ratio);
  Expr rest = angle - 2 * kHalfPiRest;
  Expr turned = 2 * kHalfPi - rest;
  angle = select({x.bits(DType::kI64) < 0, turned, angle});
  return copy_sign(angle, y);
}

}  // namespace tenon::codegen
