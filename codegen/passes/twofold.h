// Sums and products of f64 tiles with what rounding takes off them: twice the digits, as two tiles.
#pragma once

#include "codegen/passes/expression.h"

namespace tenon::codegen {

// high + low, where low is at most half a unit of the last place of high.
struct Twofold {
  Expr high, low;
};

// a + b, exactly.
inline Twofold exact_sum(Expr a, Expr b) {
  Expr sum = a + b;
  Expr of_b = sum - a;
  Expr of_a = sum - of_b;
  Expr rest_b = b - of_b;
  Expr rest_a = a - of_a;
  return {sum, rest_a + rest_b};
}

// The same for |a| >= |b|, or a of 0.
inline Twofold ordered_sum(Expr a, Expr b) {
  Expr sum = a + b;
  Expr of_b = sum - a;
  return {sum, b - of_b};
}

// a * b, exactly where the product's last digits are no denormal number.
inline Twofold exact_product(Expr a, Expr b) {
  Expr product = a * b;
  return {product, fma(a, b, -product)};
}

inline Twofold product(Twofold a, Twofold b) {
  Twofold made = exact_product(a.high, b.high);
  Expr low = fma(a.high, b.low, made.low);
  return ordered_sum(made.high, fma(a.low, b.high, low));
}

inline Twofold sum(Twofold a, Twofold b) {
  Twofold made = exact_sum(a.high, b.high);
  Expr low = a.low + b.low;
  return ordered_sum(made.high, made.low + low);
}

inline Twofold twofold_like(Expr x, double high, double low) {
  Expr first = x.like(high);
  return {first, x.like(low)};
}

}  // namespace tenon::codegen
