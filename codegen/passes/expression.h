// Arithmetic on tiles in the notation of arithmetic: the passes' formulas read as formulas.
#pragma once

#include <concepts>
#include <initializer_list>

#include "codegen/tile/builder.h"

namespace tenon::codegen {

class Expr {
 public:
  Expr(Builder& builder, ValueId id) : builder_(&builder), id_(id) {}

  ValueId id() const { return id_; }
  Builder& builder() const { return *builder_; }
  DType dtype() const { return builder_->type(id_).dtype; }

  // A constant of this tile's shape, in this or another type.
  Expr like(double value) const { return {*builder_, builder_->constant(dtype(), value, shape())}; }
  Expr like_integer(DType dtype, int64_t value) const {
    return {*builder_, builder_->integer_constant(dtype, value, shape())};
  }

  Expr apply(Fn fn) const { return {*builder_, builder_->unary(fn, id_)}; }
  Expr apply(Fn fn, Expr other) const { return {*builder_, builder_->binary(fn, id_, other.id_)}; }
  Expr compare(Fn fn, Expr other) const {
    return {*builder_, builder_->compare(fn, id_, other.id_)};
  }
  Expr as(DType dtype) const { return {*builder_, builder_->cast(id_, dtype)}; }
  Expr bits(DType dtype) const { return {*builder_, builder_->bitcast(id_, dtype)}; }

  // Numbers become constants of this type. Integers keep every bit.
  template <std::floating_point T>
  Expr operand(T value) const {
    return like(value);
  }
  template <std::integral T>
  Expr operand(T value) const {
    return like_integer(dtype(), static_cast<int64_t>(value));
  }
  Expr operand(Expr value) const { return value; }

 private:
  std::vector<int> shape() const { return builder_->type(id_).shape; }

  Builder* builder_;
  ValueId id_;
};

template <typename T>
concept Operand = std::floating_point<T> || std::integral<T> || std::same_as<T, Expr>;

#define TENON_EXPR_BINARY(symbol, fn) \
  template <Operand T>                \
  Expr operator symbol(Expr a, T b) { \
    return a.apply(fn, a.operand(b)); \
  }
TENON_EXPR_BINARY(+, Fn::kAdd)
TENON_EXPR_BINARY(-, Fn::kSub)
TENON_EXPR_BINARY(*, Fn::kMul)
TENON_EXPR_BINARY(/, Fn::kDiv)
TENON_EXPR_BINARY(&, Fn::kAnd)
TENON_EXPR_BINARY(|, Fn::kOr)
TENON_EXPR_BINARY(^, Fn::kXor)
TENON_EXPR_BINARY(<<, Fn::kShiftLeft)
TENON_EXPR_BINARY(>>, Fn::kShiftRight)
#undef TENON_EXPR_BINARY

#define TENON_EXPR_COMPARE(symbol, fn)  \
  template <Operand T>                  \
  Expr operator symbol(Expr a, T b) {   \
    return a.compare(fn, a.operand(b)); \
  }
TENON_EXPR_COMPARE(==, Fn::kEqual)
TENON_EXPR_COMPARE(!=, Fn::kNotEqual)
TENON_EXPR_COMPARE(<, Fn::kLess)
TENON_EXPR_COMPARE(<=, Fn::kLessEqual)
TENON_EXPR_COMPARE(>, Fn::kGreater)
TENON_EXPR_COMPARE(>=, Fn::kGreaterEqual)
#undef TENON_EXPR_COMPARE

template <std::floating_point T>
Expr operator-(T a, Expr b) {
  return b.like(a) - b;
}
template <std::floating_point T>
Expr operator/(T a, Expr b) {
  return b.like(a) / b;
}
inline Expr operator-(Expr a) { return a.apply(Fn::kNeg); }
inline Expr operator!(Expr a) { return a.apply(Fn::kNot); }

inline Expr abs(Expr a) { return a.apply(Fn::kAbs); }
// Within 1 ULP; 1.0 / a is the nearest number, and dearer on a GPU.
inline Expr reciprocal(Expr a) { return a.apply(Fn::kReciprocal); }
inline Expr sqrt(Expr a) { return a.apply(Fn::kSqrt); }
inline Expr trunc(Expr a) { return a.apply(Fn::kTrunc); }
inline Expr round_even(Expr a) { return a.apply(Fn::kRound); }
inline Expr is_nan(Expr a) { return a != a; }

template <Operand B, Operand C>
Expr fma(Expr a, B b, C c) {
  Builder& builder = a.builder();
  return {builder, builder.fma({a.id(), a.operand(b).id(), a.operand(c).id()})};
}

// One of `yes` and `no` must be a tile; a number takes its type.
template <Operand No>
Expr select(Expr condition, Expr yes, No no) {
  Builder& builder = yes.builder();
  return {builder, builder.select(condition.id(), yes.id(), yes.operand(no).id())};
}
template <typename Yes>
requires(std::floating_point<Yes> || std::integral<Yes>) Expr
    select(Expr condition, Yes yes, Expr no) {
  return select(condition, no.operand(yes), no);
}
// In braces, for operands that write operations: see Pair in builder.h. Operators have no such
// form; their operands get names.
struct Choice {
  Expr condition, yes, no;
};
inline Expr select(Choice x) { return select(x.condition, x.yes, x.no); }

// NaN stays NaN.
template <Operand T>
Expr at_least(Expr x, T bound) {
  return select(x < bound, bound, x);
}
template <Operand T>
Expr at_most(Expr x, T bound) {
  return select(x > bound, bound, x);
}

// c[0] + c[1] x + c[2] x^2 + …
inline Expr polynomial(Expr x, std::initializer_list<double> coefficients) {
  const double* last = coefficients.end() - 1;
  Expr sum = x.like(*last);
  while (last-- != coefficients.begin()) sum = fma(sum, x, *last);
  return sum;
}

}  // namespace tenon::codegen
