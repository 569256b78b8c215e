// Coefficients are minimax fits (Remez) of the functions named beside them, rounded to f32.
#include "codegen/passes/math_f32.h"

#include <limits>

namespace tenon::codegen {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLog2E = 1.44269504088896341;
// ln 2 in two parts; the first has few enough bits that its product with an exponent is exact.
constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.42860682030941723e-06;

// Adding this leaves an integer in the low bits: 1.5 * 2^23.
constexpr double kRounder = 12582912.0;

// x = n ln 2 + r with |r| <= ln 2 / 2; `shifted` holds n in its low bits.
struct Reduced {
  Expr r, shifted;
};

Reduced reduce_by_ln2(Expr x) {
  Expr shifted = fma(x, kLog2E, kRounder);
  Expr n = shifted - kRounder;
  Expr r = fma(n, -kLn2Low, fma(n, -kLn2High, x));
  return {r, shifted};
}

Expr exp_polynomial(Expr r) {
  Expr p = polynomial(r, {0.5, 0.166665167, 0.0416662022, 0.00836908817, 0.0013950835});
  return fma(fma(p, r, 1.0), r, 1.0);  // 1 + r + r^2 p(r), p(r) = (e^r - 1 - r) / r^2
}

Expr power_of_two(Expr low_bits) {  // 2^n for n in the low bits
  return ((low_bits << 23) + (127 << 23)).bits(DType::kF32);
}

// y * 2^n in two steps, so that neither factor leaves the range and only the last product rounds.
Expr scale(Expr y, Expr shifted) {
  Expr n = shifted.bits(DType::kI32);
  Expr half = n >> 1;
  Expr half_scaled = y * power_of_two(half);
  return half_scaled * power_of_two(n - half);
}

// e^x where the result is a normal number.
Expr exp_normal(Expr x) {
  Reduced reduced = reduce_by_ln2(x);
  Expr fraction = exp_polynomial(reduced.r);
  return fraction * power_of_two(reduced.shifted.bits(DType::kI32));
}

// x = 2^exponent * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
struct Split {
  Expr exponent, f;
};

Split split(Expr x) {
  constexpr double kSmallestNormal = 0x1p-126;
  constexpr int kSqrtHalf = 0x3f3504f3;
  Expr tiny = x < kSmallestNormal;
  Expr normal = select(tiny, x * 0x1p23, x);
  Expr moved = normal.bits(DType::kI32) + (0x3f800000 - kSqrtHalf);
  Expr exponent = ((moved >> 23) - 127).as(DType::kF32);
  Expr mantissa = ((moved & 0x7fffff) + kSqrtHalf).bits(DType::kF32);
  return {select(tiny, exponent - 23.0, exponent), mantissa - 1.0};
}

// f^3 p(f), p(f) = (log(1 + f) - f + f^2 / 2) / f^3
Expr log_tail(Expr f) {
  Expr p = polynomial(f, {0.333333135, -0.250000089, 0.200021237, -0.166680053, 0.142194539,
                          -0.124053396, 0.118886948, -0.116775192, 0.0674773902});
  return f * (f * f) * p;
}

Expr log_edges(Expr x, Expr result) {
  result = select(x == 0.0, -kInfinity, result);
  result = select(x < 0.0, kNan, result);
  return select(x < kInfinity, result, x);  // infinity and NaN
}

Expr copy_sign(Expr magnitude, Expr from) {
  constexpr int64_t kSign = 0x80000000;
  Expr sign = from.bits(DType::kU32) & kSign;
  return (magnitude.bits(DType::kU32) | sign).bits(DType::kF32);
}

}  // namespace

Expr exp_f32(Expr x) {
  Reduced reduced = reduce_by_ln2(at_most(at_least(x, -104.0), 89.0));  // 0 and infinity beyond
  return scale(exp_polynomial(reduced.r), reduced.shifted);
}

Expr exp_by_exp2(Expr x) {
  // e^x = 2^s e^(x - s ln 2) with s = x log2(e) rounded: what is left is at most 2^-18, so that
  // 1 + rest is e^rest to 2^-37.
  constexpr double kHigh = 0.693147182464599609375, kLow = -1.90465429995776e-09;  // ln 2
  constexpr double kLargest = 88.72283172607422;  // e^x is finite up to here
  Expr bounded = at_least(x, -104.0);             // 0 below, and no infinity less infinity
  Expr scaled = bounded * kLog2E;
  Expr rest = fma(scaled, -kLow, fma(scaled, -kHigh, bounded));
  Expr power = scaled.apply(Fn::kExp2);
  Expr too_large = x > kLargest;
  return select(too_large, kInfinity, fma(power, rest, power));
}

Expr exp2_f32(Expr x) {
  Expr bounded = at_most(at_least(x, -151.0), 129.0);
  Expr shifted = bounded + kRounder;
  Expr r = bounded - (shifted - kRounder);
  Expr q = polynomial(
      r, {0.693147182, 0.240226507, 0.0555032715, 0.00961800292, 0.00134005025, 0.000154765716});
  return scale(fma(q, r, 1.0), shifted);  // q(r) = (2^r - 1) / r
}

Expr log_f32(Expr x) {
  Split s = split(x);
  Expr low = fma(s.exponent, kLn2Low, log_tail(s.f));
  low = fma(s.f * s.f, -0.5, low);
  return log_edges(x, fma(s.exponent, kLn2High, s.f + low));
}

Expr log2_f32(Expr x) {
  // log2(e) = 1 + 0.44…: the leading part of the product is then exact.
  constexpr double kFraction = kLog2E - 1;
  Split s = split(x);
  Expr square = s.f * s.f, low = fma(square, -0.5, log_tail(s.f));
  Expr product = fma(s.f, kFraction, low * kFraction) + low;
  return log_edges(x, (product + s.f) + s.exponent);
}

Expr tanh_f32(Expr x) {
  Expr a = abs(x), square = x * x;
  Expr p =
      polynomial(square, {-0.333332837, 0.133314908, -0.0537434965, 0.020650588, -0.00571704516});
  Expr near_zero = fma(a * square, p, a);  // p(s) = (tanh(x) / x - 1) / s, s = x^2
  Expr e = exp_normal(at_most(a * 2.0, 20.0));
  Expr far = fma(reciprocal(e + 1.0), -2.0, 1.0);
  return copy_sign(select(a < 0.625, near_zero, far), x);
}

Expr erf_f32(Expr x) {
  Expr a = abs(x), square = x * x;
  Expr p = polynomial(square, {0.128379166, -0.37612626, 0.112835996, -0.0268544238, 0.00518949982,
                               -0.000802055758, 7.88824545e-05});
  Expr near_zero = fma(a, p, a);  // p(x^2) = erf(x) / x - 1
  Expr q =
      polynomial(at_most(a, 4.0), {-0.000183442986, 1.12955678, 0.633262634, 0.108372465,
                                   -0.0251789596, 0.00419360772, -0.000439105614, 2.14960455e-05});
  Expr far = 1.0 - exp_normal(-q);  // q(t) = -log(erfc(t))
  return copy_sign(select(a < 0.9375, near_zero, far), x);
}

Expr one_plus_erf_f32(Expr x) {
  // erfc(a) = 2^-q(a) for a = |x|; q is fitted up to 5 and grows on from there.
  Expr a = abs(x);
  Expr q = a * polynomial(a, {1.62790871, 0.91841644, 0.14845942, -0.0281206146, 0.000453769346,
                              0.0018789015, -0.000697872951, 0.00013044606, -1.29847458e-05,
                              5.43889087e-07});
  // A float's bias is added to the exponent with the rounder. That of 2^-127 makes 0.
  constexpr double kBiased = kRounder + 127;
  q = q.apply(Fn::kMin, q.like(127.0));
  Expr shifted = kBiased - q;
  Expr r = q + (shifted - kBiased);
  Expr p = polynomial(r, {1.0, -0.693147182, 0.240226507, -0.0555032715, 0.00961800292,
                          -0.00134005025, 0.000154765716});  // 2^-r
  Expr tail = p * (shifted.bits(DType::kI32) << 23).bits(DType::kF32);
  return select({x < 0.0, tail, 2.0 - tail});
}

}  // namespace tenon::codegen
