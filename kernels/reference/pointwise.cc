#include <cmath>

#include "base/error.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

using RealUnary = double (*)(double);
using IntegerUnary = int64_t (*)(int64_t);
using RealBinary = double (*)(double, double);
using IntegerBinary = int64_t (*)(int64_t, int64_t);

template <RealUnary real, IntegerUnary integer = nullptr>
Outputs unary(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (x.is_real() || integer == nullptr) {
      y.set(i, real(x.number(i)));
    } else {
      y.set_integer(i, integer(x.integers[static_cast<size_t>(i)]));
    }
  }
  return {std::move(y)};
}

// Visits the broadcast of two operands: fn(flat of the result, element of a, element of b).
template <typename Fn>
void for_each_pair(const ReferenceTensor& a, const ReferenceTensor& b, const Dims& dims, Fn fn) {
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    fn(flat, broadcast_index(a.dims, index), broadcast_index(b.dims, index));
  });
}

template <RealBinary real, IntegerBinary integer, IntegerBinary u64 = integer>
Outputs binary(const Call& call) {
  const ReferenceTensor &a = call.input(0), &b = call.input(1);
  ReferenceTensor y = ReferenceTensor::zeros(a.dtype, broadcast_dims(a.dims, b.dims));
  for_each_pair(a, b, y.dims, [&](int64_t i, int64_t ia, int64_t ib) {
    if (a.is_real() || b.is_real()) {
      y.set(i, real(a.number(ia), b.number(ib)));
    } else {
      const IntegerBinary fn = a.dtype == DType::kU64 ? u64 : integer;
      y.set_integer(i,
                    fn(a.integers[static_cast<size_t>(ia)], b.integers[static_cast<size_t>(ib)]));
    }
  });
  return {std::move(y)};
}

enum class Order { kLess, kEqual, kGreater, kNone };

Order compare(const ReferenceTensor& a, int64_t ia, const ReferenceTensor& b, int64_t ib) {
  const auto order = [](auto x, auto y) {
    return x < y ? Order::kLess : x > y ? Order::kGreater : x == y ? Order::kEqual : Order::kNone;
  };
  if (a.is_real()) return order(a.number(ia), b.number(ib));
  const int64_t x = a.integers[static_cast<size_t>(ia)], y = b.integers[static_cast<size_t>(ib)];
  return a.dtype == DType::kU64 ? order(static_cast<uint64_t>(x), static_cast<uint64_t>(y))
                                : order(x, y);
}

template <Order first, Order second = first>
Outputs comparison(const Call& call) {
  const ReferenceTensor &a = call.input(0), &b = call.input(1);
  ReferenceTensor y = ReferenceTensor::zeros(DType::kBool, broadcast_dims(a.dims, b.dims));
  for_each_pair(a, b, y.dims, [&](int64_t i, int64_t ia, int64_t ib) {
    const Order order = compare(a, ia, b, ib);
    y.set_integer(i, order == first || order == second);
  });
  return {std::move(y)};
}

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }
int64_t s(uint64_t value) { return static_cast<int64_t>(value); }

double add(double a, double b) { return a + b; }
int64_t add_integers(int64_t a, int64_t b) { return s(u(a) + u(b)); }
double subtract(double a, double b) { return a - b; }
int64_t subtract_integers(int64_t a, int64_t b) { return s(u(a) - u(b)); }
double multiply(double a, double b) { return a * b; }
int64_t multiply_integers(int64_t a, int64_t b) { return s(u(a) * u(b)); }

double divide(double a, double b) { return a / b; }
int64_t divide_integers(int64_t a, int64_t b) {
  if (b == 0) throw UserError("an integer is divided by zero");
  return b == -1 ? s(-u(a)) : a / b;
}
int64_t divide_u64(int64_t a, int64_t b) {
  if (b == 0) throw UserError("an integer is divided by zero");
  return s(u(a) / u(b));
}

// The result has the divisor's sign, as Python's % has.
double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
int64_t modulo_integers(int64_t a, int64_t b) {
  if (b == 0) throw UserError("an integer is divided by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
int64_t modulo_u64(int64_t a, int64_t b) {
  if (b == 0) throw UserError("an integer is divided by zero");
  return s(u(a) % u(b));
}
double c_modulo(double a, double b) { return std::fmod(a, b); }
int64_t c_modulo_integers(int64_t a, int64_t b) {
  if (b == 0) throw UserError("an integer is divided by zero");
  return b == -1 ? 0 : a % b;
}

Outputs modulus(const Call& call) {
  return call.node.integer("fmod", 0) != 0 ? binary<c_modulo, c_modulo_integers, modulo_u64>(call)
                                           : binary<modulo, modulo_integers, modulo_u64>(call);
}

double power(double a, double b) { return std::pow(a, b); }
int64_t power_integers(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1;
  for (uint64_t square = u(base); exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return s(result);
}

// NaN wins.
double smaller(double a, double b) { return std::isnan(a) || a < b ? a : b; }
int64_t smaller_integer(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t smaller_u64(int64_t a, int64_t b) { return u(a) < u(b) ? a : b; }
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }
int64_t larger_integer(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t larger_u64(int64_t a, int64_t b) { return u(a) > u(b) ? a : b; }

// Sum, Mean, Min and Max take any number of operands.
template <Outputs (*pairwise)(const Call&)>
Outputs fold_inputs(const Call& call) {
  ReferenceTensor result = call.input(0);
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    Call step = call;
    step.inputs = {&result, call.inputs[i]};
    Outputs next = pairwise(step);
    result = std::move(next[0]);
  }
  return {std::move(result)};
}

Outputs mean(const Call& call) {
  Outputs sum = fold_inputs<binary<add, add_integers>>(call);
  for (double& real : sum[0].reals) real /= static_cast<double>(call.inputs.size());
  return sum;
}

double no_reals(double, double) { throw UserError("expected integers or bools, got floats"); }
int64_t logical_and(int64_t a, int64_t b) { return a != 0 && b != 0; }
int64_t logical_or(int64_t a, int64_t b) { return a != 0 || b != 0; }
int64_t logical_xor(int64_t a, int64_t b) { return (a != 0) != (b != 0); }
int64_t bit_and(int64_t a, int64_t b) { return a & b; }
int64_t bit_or(int64_t a, int64_t b) { return a | b; }
int64_t bit_xor(int64_t a, int64_t b) { return a ^ b; }
int64_t shift_left(int64_t a, int64_t b) { return u(b) > 63 ? 0 : s(u(a) << b); }
int64_t shift_right(int64_t a, int64_t b) { return u(b) > 63 ? 0 : s(u(a) >> b); }

Outputs bit_shift(const Call& call) {
  return call.node.text("direction", "") == "LEFT" ? binary<no_reals, shift_left>(call)
                                                   : binary<no_reals, shift_right>(call);
}

double no_real(double) { throw UserError("expected integers or bools, got floats"); }
int64_t logical_not(int64_t a) { return a == 0; }
int64_t bit_not(int64_t a) { return ~a; }
double negate(double a) { return -a; }
int64_t negate_integer(int64_t a) { return s(-u(a)); }
double absolute(double a) { return std::fabs(a); }
int64_t absolute_integer(int64_t a) { return a < 0 ? s(-u(a)) : a; }
double sign(double a) { return std::isnan(a) ? a : (a > 0) - (a < 0); }
int64_t sign_integer(int64_t a) { return (a > 0) - (a < 0); }
int64_t same_integer(int64_t a) { return a; }
double reciprocal(double a) { return 1 / a; }

Outputs absolute_value(const Call& call) {
  return is_signed(call.input(0).dtype) ? unary<absolute, absolute_integer>(call)
                                        : Outputs{call.input(0)};
}

Outputs where(const Call& call) {
  const ReferenceTensor &condition = call.input(0), &x = call.input(1), &y = call.input(2);
  const Dims dims = broadcast_dims(condition.dims, broadcast_dims(x.dims, y.dims));
  ReferenceTensor result = ReferenceTensor::zeros(x.dtype, dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    const bool take_x = condition.number(broadcast_index(condition.dims, index)) != 0;
    const ReferenceTensor& from = take_x ? x : y;
    result.copy_element(flat, from, broadcast_index(from.dims, index));
  });
  return {std::move(result)};
}

template <typename Test>
Outputs test_each(const Call& call, Test test) {
  const ReferenceTensor& x = call.input(0);
  ReferenceTensor y = ReferenceTensor::zeros(DType::kBool, x.dims);
  for (int64_t i = 0; i < x.elements(); ++i) y.set_integer(i, test(x.number(i)));
  return {std::move(y)};
}

Outputs is_nan(const Call& call) {
  return test_each(call, [](double x) { return std::isnan(x); });
}

Outputs is_infinite(const Call& call) {
  const bool positive = call.node.integer("detect_positive", 1) != 0;
  const bool negative = call.node.integer("detect_negative", 1) != 0;
  return test_each(call, [=](double x) { return std::isinf(x) && (x > 0 ? positive : negative); });
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"Add", binary<add, add_integers>},
    {"Sub", binary<subtract, subtract_integers>},
    {"Mul", binary<multiply, multiply_integers>},
    {"Div", binary<divide, divide_integers, divide_u64>},
    {"Mod", modulus},
    {"Pow", binary<power, power_integers>},
    {"Min", fold_inputs<binary<smaller, smaller_integer, smaller_u64>>},
    {"Max", fold_inputs<binary<larger, larger_integer, larger_u64>>},
    {"Sum", fold_inputs<binary<add, add_integers>>},
    {"Mean", mean},
    {"And", binary<no_reals, logical_and>},
    {"Or", binary<no_reals, logical_or>},
    {"Xor", binary<no_reals, logical_xor>},
    {"Not", unary<no_real, logical_not>},
    {"BitwiseAnd", binary<no_reals, bit_and>},
    {"BitwiseOr", binary<no_reals, bit_or>},
    {"BitwiseXor", binary<no_reals, bit_xor>},
    {"BitwiseNot", unary<no_real, bit_not>},
    {"BitShift", bit_shift},
    {"Neg", unary<negate, negate_integer>},
    {"Abs", absolute_value},
    {"Sign", unary<sign, sign_integer>},
    {"Floor", unary<std::floor, same_integer>},
    {"Ceil", unary<std::ceil, same_integer>},
    {"Round", unary<std::nearbyint, same_integer>},
    {"Sqrt", unary<std::sqrt>},
    {"Reciprocal", unary<reciprocal>},
    {"Exp", unary<std::exp>},
    {"Log", unary<std::log>},
    {"Sin", unary<std::sin>},
    {"Cos", unary<std::cos>},
    {"Tan", unary<std::tan>},
    {"Asin", unary<std::asin>},
    {"Acos", unary<std::acos>},
    {"Atan", unary<std::atan>},
    {"Sinh", unary<std::sinh>},
    {"Cosh", unary<std::cosh>},
    {"Tanh", unary<std::tanh>},
    {"Asinh", unary<std::asinh>},
    {"Acosh", unary<std::acosh>},
    {"Atanh", unary<std::atanh>},
    {"Erf", unary<std::erf>},
    {"Equal", comparison<Order::kEqual>},
    {"Less", comparison<Order::kLess>},
    {"LessOrEqual", comparison<Order::kLess, Order::kEqual>},
    {"Greater", comparison<Order::kGreater>},
    {"GreaterOrEqual", comparison<Order::kGreater, Order::kEqual>},
    {"Where", where},
    {"IsNaN", is_nan},
    {"IsInf", is_infinite},
});

}  // namespace

std::span<const OpEntry> pointwise_ops() { return kOps; }

}  // namespace tenon::kernels::reference
