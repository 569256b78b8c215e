// Elementwise operations. The function is chosen once per tile, outside the loops.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "codegen/interpret/elements.h"
#include "codegen/interpret/tile_data.h"

namespace tenon::codegen {

namespace {

double reciprocal_root(double x) { return 1 / std::sqrt(x); }

using Real1 = double (*)(double);
using Real2 = double (*)(double, double);

struct RealFunction {
  Fn fn;
  Real1 function;
};
constexpr RealFunction kRealFunctions[] = {
    {Fn::kSqrt, std::sqrt},   {Fn::kRsqrt, reciprocal_root}, {Fn::kExp, std::exp},
    {Fn::kExp2, std::exp2},   {Fn::kLog, std::log},          {Fn::kLog2, std::log2},
    {Fn::kSin, std::sin},     {Fn::kCos, std::cos},          {Fn::kTan, std::tan},
    {Fn::kTanh, std::tanh},   {Fn::kErf, std::erf},          {Fn::kAsin, std::asin},
    {Fn::kAcos, std::acos},   {Fn::kAtan, std::atan},        {Fn::kSinh, std::sinh},
    {Fn::kCosh, std::cosh},   {Fn::kAsinh, std::asinh},      {Fn::kAcosh, std::acosh},
    {Fn::kAtanh, std::atanh},
};

struct Binary2 {
  Fn fn;
  Real2 function;
};
constexpr Binary2 kRealFunctions2[] = {
    {Fn::kPow, std::pow}, {Fn::kAtan2, std::atan2}, {Fn::kRem, std::fmod}};

struct SmallFloat {
  Fn dequantize, quantize;
  DType dtype;
};
constexpr SmallFloat kSmallFloats[] = {
    {Fn::kDequantizeF8E4M3FN, Fn::kQuantizeF8E4M3FN, DType::kF8E4M3FN},
    {Fn::kDequantizeF8E4M3FNUZ, Fn::kQuantizeF8E4M3FNUZ, DType::kF8E4M3FNUZ},
    {Fn::kDequantizeF8E5M2, Fn::kQuantizeF8E5M2, DType::kF8E5M2},
    {Fn::kDequantizeF8E5M2FNUZ, Fn::kQuantizeF8E5M2FNUZ, DType::kF8E5M2FNUZ},
    {Fn::kDequantizeF8E8M0, Fn::kQuantizeF8E8M0, DType::kF8E8M0},
    {Fn::kDequantizeF4E2M1, Fn::kQuantizeF4E2M1, DType::kF4E2M1},
};

[[noreturn]] void refuse(const Operation& op, DType dtype) {
  throw InternalError(std::string(name(op.fn)) + " has no meaning for " +
                      std::string(tenon::name(dtype)));
}

template <typename In, typename Out, typename Function>
void each(const TileData& x, TileData& out, Function function) {
  const In* in = x.data<In>();
  Out* to = out.data<Out>();
  const int64_t n = out.elements();
  for (int64_t i = 0; i < n; ++i) to[i] = element_of<Out>(function(value_of(in[i])));
}

template <typename In, typename Out, typename Function>
void each(const TileData& x, const TileData& y, TileData& out, Function function) {
  const In *a = x.data<In>(), *b = y.data<In>();
  Out* to = out.data<Out>();
  const int64_t n = out.elements();
  for (int64_t i = 0; i < n; ++i) to[i] = element_of<Out>(function(value_of(a[i]), value_of(b[i])));
}

// Integers wrap; arithmetic in 32 or 64 unsigned bits has no other meaning.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 8), uint32_t, uint64_t>;

// ---- of one operand

// Whether `op` takes numbers apart or puts them together, and did so.
bool small_float(const Operation& op, const TileData& x, TileData& out) {
  for (const SmallFloat& format : kSmallFloats) {
    if (op.fn == format.dequantize) {
      std::array<float, 256> table{};
      const int codes = 1 << bit_width(format.dtype);
      for (int i = 0; i < 256; ++i) {
        table[i] = static_cast<float>(decode(format.dtype, static_cast<uint64_t>(i % codes)));
      }
      each<uint8_t, float>(x, out, [&](uint8_t code) { return table[code]; });
      return true;
    }
    if (op.fn == format.quantize) {
      const EncodeRule rule = encode_rule(op.integer);
      each<float, uint8_t>(x, out, [&](float value) {
        return static_cast<uint8_t>(encode(format.dtype, value, rule));
      });
      return true;
    }
  }
  return false;
}

template <typename T>
void unary_float(const Operation& op, const TileData& x, TileData& out) {
  using C = Computed<T>;
  switch (op.fn) {
    case Fn::kNeg:
      return each<T, T>(x, out, [](C v) { return -v; });
    case Fn::kAbs:
      return each<T, T>(x, out, [](C v) { return std::fabs(v); });
    case Fn::kReciprocal:
      return each<T, T>(x, out, [](C v) { return 1 / v; });
    case Fn::kFloor:
      return each<T, T>(x, out, [](C v) { return std::floor(v); });
    case Fn::kCeil:
      return each<T, T>(x, out, [](C v) { return std::ceil(v); });
    case Fn::kTrunc:
      return each<T, T>(x, out, [](C v) { return std::trunc(v); });
    case Fn::kRound:
      return each<T, T>(x, out, [](C v) { return std::nearbyint(v); });
    case Fn::kSign:
      return each<T, T>(x, out, [](C v) { return v > 0 ? C{1} : v < 0 ? C{-1} : v; });
    case Fn::kIsNan:
      return each<T, bool>(x, out, [](C v) { return v != v; });
    case Fn::kIsInf:
      return each<T, bool>(x, out, [](C v) { return std::isinf(v); });
    default:
      break;
  }
  for (const RealFunction& row : kRealFunctions) {
    if (row.fn != op.fn) continue;
    return each<T, T>(x, out, [&](C v) { return static_cast<C>(row.function(v)); });
  }
  refuse(op, x.dtype());
}

template <typename T>
void unary_integer(const Operation& op, const TileData& x, TileData& out) {
  using W = Wrapping<T>;
  switch (op.fn) {
    case Fn::kNeg:
      return each<T, T>(x, out, [](T v) { return static_cast<T>(W{0} - static_cast<W>(v)); });
    case Fn::kAbs:
      return each<T, T>(x, out,
                        [](T v) { return v < 0 ? static_cast<T>(W{0} - static_cast<W>(v)) : v; });
    case Fn::kNot:
      return each<T, T>(x, out, [](T v) { return static_cast<T>(~v); });
    case Fn::kSign:
      return each<T, T>(x, out, [](T v) { return static_cast<T>((v > 0) - (v < 0)); });
    default:
      refuse(op, x.dtype());
  }
}

void unary(const Operation& op, const TileData& x, TileData& out) {
  if (small_float(op, x, out)) return;
  visit_element(x.dtype(), [&]<typename T>() {
    if constexpr (is_float_element<T>) {
      unary_float<T>(op, x, out);
    } else if constexpr (std::is_same_v<T, bool>) {
      each<bool, bool>(x, out, [](bool v) { return !v; });
    } else {
      unary_integer<T>(op, x, out);
    }
  });
}

// ---- of two operands

template <typename C>
C extremum(bool is_max, C a, C b) {
  if (a != a) return a;
  if (b != b) return b;
  return (is_max ? a > b : a < b) ? a : b;
}

template <typename C>
C modulo(C a, C b) {
  const C rest = std::fmod(a, b);
  if (rest == 0) return b < 0 ? C{-0.0} : C{0};
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

template <typename T>
void binary_float(const Operation& op, const TileData& x, const TileData& y, TileData& out) {
  using C = Computed<T>;
  switch (op.fn) {
    case Fn::kAdd:
      return each<T, T>(x, y, out, [](C a, C b) { return a + b; });
    case Fn::kSub:
      return each<T, T>(x, y, out, [](C a, C b) { return a - b; });
    case Fn::kMul:
      return each<T, T>(x, y, out, [](C a, C b) { return a * b; });
    case Fn::kDiv:
      return each<T, T>(x, y, out, [](C a, C b) { return a / b; });
    case Fn::kMin:
      return each<T, T>(x, y, out, [](C a, C b) { return extremum(false, a, b); });
    case Fn::kMax:
      return each<T, T>(x, y, out, [](C a, C b) { return extremum(true, a, b); });
    case Fn::kMod:
      return each<T, T>(x, y, out, [](C a, C b) { return modulo(a, b); });
    default:
      break;
  }
  for (const Binary2& row : kRealFunctions2) {
    if (row.fn != op.fn) continue;
    return each<T, T>(x, y, out, [&](C a, C b) { return static_cast<C>(row.function(a, b)); });
  }
  refuse(op, x.dtype());
}

// Never traps: x / 0 = x rem 0 = 0, and the smallest number over -1 wraps.
template <typename T>
T quotient(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(a));
  }
  return static_cast<T>(a / b);
}

template <typename T>
T remainder(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}

template <typename T>
T modulo_integer(T a, T b) {
  const T rest = remainder(a, b);
  if constexpr (std::is_signed_v<T>) {
    if (rest != 0 && (rest ^ b) < 0) return static_cast<T>(rest + b);
  }
  return rest;
}

template <typename T>
T power(T base, T exponent) {
  if (exponent < 0) {  // a fraction, unless the base is 1 or -1
    if (base == 1) return 1;
    if (base != static_cast<T>(-1)) return 0;
    return exponent % 2 != 0 ? base : T{1};
  }
  Wrapping<T> result = 1, square = static_cast<Wrapping<T>>(base);
  for (auto rest = static_cast<std::make_unsigned_t<T>>(exponent); rest != 0; rest >>= 1) {
    if (rest & 1) result *= square;
    square *= square;
  }
  return static_cast<T>(result);
}

// Shifting by the width or more gives 0.
template <typename T>
T shifted(bool left, T x, T amount) {
  using Bits = std::make_unsigned_t<T>;
  const auto by = static_cast<Bits>(amount);
  if (by >= sizeof(T) * 8) return 0;
  return left ? static_cast<T>(static_cast<Wrapping<T>>(x) << by) : static_cast<T>(x >> by);
}

template <typename T>
void binary_integer(const Operation& op, const TileData& x, const TileData& y, TileData& out) {
  using W = Wrapping<T>;
  auto wrapping = [&](auto function) {
    each<T, T>(x, y, out, [&](T a, T b) {
      return static_cast<T>(function(static_cast<W>(a), static_cast<W>(b)));
    });
  };
  switch (op.fn) {
    case Fn::kAdd:
      return wrapping([](W a, W b) { return a + b; });
    case Fn::kSub:
      return wrapping([](W a, W b) { return a - b; });
    case Fn::kMul:
      return wrapping([](W a, W b) { return a * b; });
    case Fn::kAnd:
      return wrapping([](W a, W b) { return a & b; });
    case Fn::kOr:
      return wrapping([](W a, W b) { return a | b; });
    case Fn::kXor:
      return wrapping([](W a, W b) { return a ^ b; });
    case Fn::kDiv:
      return each<T, T>(x, y, out, quotient<T>);
    case Fn::kRem:
      return each<T, T>(x, y, out, remainder<T>);
    case Fn::kMod:
      return each<T, T>(x, y, out, modulo_integer<T>);
    case Fn::kPow:
      return each<T, T>(x, y, out, power<T>);
    case Fn::kMin:
      return each<T, T>(x, y, out, [](T a, T b) { return std::min(a, b); });
    case Fn::kMax:
      return each<T, T>(x, y, out, [](T a, T b) { return std::max(a, b); });
    case Fn::kShiftLeft:
      return each<T, T>(x, y, out, [](T a, T b) { return shifted(true, a, b); });
    case Fn::kShiftRight:
      return each<T, T>(x, y, out, [](T a, T b) { return shifted(false, a, b); });
    default:
      refuse(op, x.dtype());
  }
}

void binary_bool(const Operation& op, const TileData& x, const TileData& y, TileData& out) {
  switch (op.fn) {
    case Fn::kAnd:
      return each<bool, bool>(x, y, out, [](bool a, bool b) { return a && b; });
    case Fn::kOr:
      return each<bool, bool>(x, y, out, [](bool a, bool b) { return a || b; });
    case Fn::kXor:
      return each<bool, bool>(x, y, out, [](bool a, bool b) { return a != b; });
    default:
      refuse(op, x.dtype());
  }
}

void binary(const Operation& op, const TileData& x, const TileData& y, TileData& out) {
  visit_element(x.dtype(), [&]<typename T>() {
    if constexpr (is_float_element<T>) {
      binary_float<T>(op, x, y, out);
    } else if constexpr (std::is_same_v<T, bool>) {
      binary_bool(op, x, y, out);
    } else {
      binary_integer<T>(op, x, y, out);
    }
  });
}

void compare(const Operation& op, const TileData& x, const TileData& y, TileData& out) {
  visit_element(x.dtype(), [&]<typename T>() {
    using C = Computed<T>;
    switch (op.fn) {
      case Fn::kEqual:
        return each<T, bool>(x, y, out, [](C a, C b) { return a == b; });
      case Fn::kNotEqual:
        return each<T, bool>(x, y, out, [](C a, C b) { return a != b; });
      case Fn::kLess:
        return each<T, bool>(x, y, out, [](C a, C b) { return a < b; });
      case Fn::kLessEqual:
        return each<T, bool>(x, y, out, [](C a, C b) { return a <= b; });
      case Fn::kGreater:
        return each<T, bool>(x, y, out, [](C a, C b) { return a > b; });
      case Fn::kGreaterEqual:
        return each<T, bool>(x, y, out, [](C a, C b) { return a >= b; });
      default:
        refuse(op, x.dtype());
    }
  });
}

// ---- of three operands

void fma(const Operation& op, TileOperands in, TileData& out) {
  visit_element(out.dtype(), [&]<typename T>() {
    if constexpr (is_float_element<T>) {
      const T *a = in[0]->data<T>(), *b = in[1]->data<T>(), *c = in[2]->data<T>();
      for (int64_t i = 0; i < out.elements(); ++i) {
        out.data<T>()[i] = element_of<T>(std::fma(value_of(a[i]), value_of(b[i]), value_of(c[i])));
      }
    } else {
      refuse(op, out.dtype());
    }
  });
}

void select(TileOperands in, TileData& out) {
  visit_width(out.dtype(), [&]<typename T>() {
    const bool* condition = in[0]->data<bool>();
    const T *a = in[1]->data<T>(), *b = in[2]->data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < out.elements(); ++i) to[i] = condition[i] ? a[i] : b[i];
  });
}

}  // namespace

void interpret_elementwise(const Operation& op, TileOperands in, TileData& out) {
  switch (op.op) {
    case Op::kUnary:
      return unary(op, *in[0], out);
    case Op::kBinary:
      return binary(op, *in[0], *in[1], out);
    case Op::kTernary:
      return fma(op, in, out);
    case Op::kCompare:
      return compare(op, *in[0], *in[1], out);
    case Op::kSelect:
      return select(in, out);
    case Op::kCast:
      return interpret_cast(*in[0], out);
    default:  // kBitcast: hosts are little-endian, so the low bits do come first
      std::memcpy(out.data<std::byte>(), in[0]->data<std::byte>(), out.bytes());
  }
}

}  // namespace tenon::codegen
