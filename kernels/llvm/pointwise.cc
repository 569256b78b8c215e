#include "kernels/llvm/pointwise.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;

struct Emission {
  Builder& b;
  const ir::Graph& body;
  const ir::Node& node;
  std::vector<Tile> operands;  // of one shape

  Tile x() const { return operands.at(0); }
  Tile y() const { return operands.at(1); }
  Tile z() const { return operands.at(2); }
  DType type() const { return b.type(x()).dtype; }
  const std::vector<int>& shape() const { return b.type(x()).shape; }
  Tile number(double value) const { return b.constant(type(), value, shape()); }
  Tile integer(int64_t value) const { return b.integer_constant(type(), value, shape()); }
  DType input_type(size_t index) const { return body.value(node.input(index)).dtype; }
  DType output_type() const { return body.value(node.output(0)).dtype; }
};

// The one number that input `index` is, where the graph knows it.
std::optional<double> known(const ir::Graph& body, const ir::Node& node, size_t index) {
  const ir::Value& value = body.value(node.input(index));
  if (!value.is_constant() || value.constant->elements() != 1) return std::nullopt;
  return load_element(value.dtype, value.constant->data, 0);
}

using Rule = Tile (*)(Emission&);

template <Fn fn>
Tile unary(Emission& e) {
  return e.b.unary(fn, e.x());
}

template <Fn fn>
Tile binary(Emission& e) {
  return e.b.binary(fn, e.x(), e.y());
}

template <Fn fn>
Tile comparison(Emission& e) {
  return e.b.compare(fn, e.x(), e.y());
}

Tile where(Emission& e) { return e.b.select(e.x(), e.y(), e.z()); }

Tile mod(Emission& e) {
  return e.b.binary(e.node.integer("fmod", 0) != 0 ? Fn::kRem : Fn::kMod, e.x(), e.y());
}

// Powers of integers are products and wrap like them, so that every target gives the same. Only
// where no integer type holds both operands, or the exponent is a float, are they taken in f64.
DType integer_power_type(DType base, DType exponent) {
  const bool in_i64 = base != DType::kU64 && exponent != DType::kU64;
  if (!is_integer(exponent) || (base != exponent && !in_i64)) return DType::kF64;
  return base == exponent ? base : DType::kI64;
}

Tile integer_power(Emission& e) {
  const DType type = integer_power_type(e.type(), e.b.type(e.y()).dtype);
  const auto as_type = [&](Tile tile) {
    return e.b.type(tile).dtype == type ? tile : e.b.cast(tile, type);
  };
  const Tile power = e.b.binary(Fn::kPow, {as_type(e.x()), as_type(e.y())});
  const DType output = e.output_type();
  return dequantize_tile(e.b, cast_to_codes(e.b, power, type, output, {}), output);
}

// Small whole exponents are products.
Tile pow(Emission& e) {
  const auto exponent = known(e.body, e.node, 1);
  if (exponent == 1.0) return e.x();
  if (exponent == 2.0) return e.b.mul(e.x(), e.x());
  if (exponent == 3.0) return e.b.mul(e.b.mul(e.x(), e.x()), e.x());
  const DType type = e.type();
  if (!is_floating(type)) return integer_power(e);
  if (exponent == -1.0) return e.b.unary(Fn::kReciprocal, e.x());
  const Tile y = e.b.type(e.y()).dtype == type ? e.y() : e.b.cast(e.y(), type);
  return e.b.binary(Fn::kPow, e.x(), y);
}

// A shift by the width or more leaves nothing.
Tile bit_shift(Emission& e) {
  const bool left = e.node.text("direction", "LEFT") == "LEFT";
  const Tile in_range = e.b.compare(Fn::kLess, e.y(), e.integer(bit_width(e.type())));
  const Tile amount = e.b.select(in_range, e.y(), e.integer(0));
  const Tile shifted = e.b.binary(left ? Fn::kShiftLeft : Fn::kShiftRight, e.x(), amount);
  return e.b.select(in_range, shifted, e.integer(0));
}

Tile is_inf(Emission& e) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool negative = e.node.integer("detect_negative", 1) != 0;
  const bool positive = e.node.integer("detect_positive", 1) != 0;
  if (negative && positive) return e.b.unary(Fn::kIsInf, e.x());
  if (!negative && !positive) return e.b.compare(Fn::kLess, e.x(), e.number(-infinity));
  return e.b.compare(Fn::kEqual, e.x(), e.number(negative ? -infinity : infinity));
}

struct Entry {
  std::string_view op;
  Rule rule;
};

constexpr auto kRules = std::to_array<Entry>({
    {"Add", binary<Fn::kAdd>},
    {"Sub", binary<Fn::kSub>},
    {"Mul", binary<Fn::kMul>},
    {"Div", binary<Fn::kDiv>},
    {"Mod", mod},
    {"Pow", pow},
    {"Min", binary<Fn::kMin>},
    {"Max", binary<Fn::kMax>},
    {"And", binary<Fn::kAnd>},
    {"Or", binary<Fn::kOr>},
    {"Xor", binary<Fn::kXor>},
    {"Not", unary<Fn::kNot>},
    {"BitwiseAnd", binary<Fn::kAnd>},
    {"BitwiseOr", binary<Fn::kOr>},
    {"BitwiseXor", binary<Fn::kXor>},
    {"BitwiseNot", unary<Fn::kNot>},
    {"BitShift", bit_shift},
    {"Neg", unary<Fn::kNeg>},
    {"Abs", unary<Fn::kAbs>},
    {"Sign", unary<Fn::kSign>},
    {"Floor", unary<Fn::kFloor>},
    {"Ceil", unary<Fn::kCeil>},
    {"Round", unary<Fn::kRound>},
    {"Sqrt", unary<Fn::kSqrt>},
    {"Reciprocal", unary<Fn::kReciprocal>},
    {"Exp", unary<Fn::kExp>},
    {"Log", unary<Fn::kLog>},
    {"Sin", unary<Fn::kSin>},
    {"Cos", unary<Fn::kCos>},
    {"Tan", unary<Fn::kTan>},
    {"Asin", unary<Fn::kAsin>},
    {"Acos", unary<Fn::kAcos>},
    {"Atan", unary<Fn::kAtan>},
    {"Sinh", unary<Fn::kSinh>},
    {"Cosh", unary<Fn::kCosh>},
    {"Tanh", unary<Fn::kTanh>},
    {"Asinh", unary<Fn::kAsinh>},
    {"Acosh", unary<Fn::kAcosh>},
    {"Atanh", unary<Fn::kAtanh>},
    {"Erf", unary<Fn::kErf>},
    {"Equal", comparison<Fn::kEqual>},
    {"Less", comparison<Fn::kLess>},
    {"LessOrEqual", comparison<Fn::kLessEqual>},
    {"Greater", comparison<Fn::kGreater>},
    {"GreaterOrEqual", comparison<Fn::kGreaterEqual>},
    {"Where", where},
    {"IsNaN", unary<Fn::kIsNan>},
    {"IsInf", is_inf},
});

const Entry* find_entry(std::string_view op) {
  const auto found = std::ranges::find(kRules, op, &Entry::op);
  return found == kRules.end() ? nullptr : &*found;
}

std::optional<RoundMode> round_mode(const ir::Node& node) {
  const std::string mode = node.text("round_mode", "up");
  if (mode == "up") return RoundMode::kUp;
  if (mode == "down") return RoundMode::kDown;
  if (mode == "nearest") return RoundMode::kNearestEven;
  return std::nullopt;
}

std::vector<int> common_shape(Builder& b, std::span<const Tile> operands) {
  std::vector<int> shape;
  for (Tile operand : operands) {
    if (operand == kNone) continue;
    const std::vector<int>& own = b.type(operand).shape;
    if (own.size() > shape.size()) shape.insert(shape.begin(), own.size() - shape.size(), 1);
    for (size_t i = 0; i < own.size(); ++i) {
      int& size = shape[shape.size() - own.size() + i];
      size = std::max(size, own[i]);
    }
  }
  return shape;
}

}  // namespace

std::vector<Tile> broadcast_operands(Builder& b, std::span<const Tile> operands) {
  const std::vector<int> shape = common_shape(b, operands);
  std::vector<Tile> result;
  for (Tile operand : operands) {
    if (operand != kNone && b.type(operand).shape != shape) {
      operand =
          b.type(operand).shape.empty() ? b.splat(operand, shape) : b.broadcast(operand, shape);
    }
    result.push_back(operand);
  }
  return result;
}

Support supports_pointwise(const ir::Graph& body, const ir::Node& node) {
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (ir::ValueId id : *values) {
      if (id == ir::kNoValue) continue;
      if (Support answer = supports_type(body.value(id).dtype); !answer) return answer;
    }
  }
  if (node.is("Cast") && !round_mode(node)) {
    return Support::no(
        fmt::format("Cast: round_mode '{}' is not supported", node.text("round_mode", "")));
  }
  if (makes_codes(node) || node.is("tenon::DimValue") || node.is("tenon::Position") ||
      find_entry(node.op) != nullptr) {
    return Support::yes();
  }
  return Support::no(fmt::format("no kernel for the pointwise op {}", node.op));
}

bool makes_codes(const ir::Node& node) { return node.is("Cast") || node.is("tenon::Quantize"); }

Tile emit_codes(Builder& b, const ir::Graph& body, const ir::Node& node,
                std::span<const Tile> operands) {
  const Emission e{b, body, node, broadcast_operands(b, operands)};
  const bool saturate = node.integer("saturate", 1) != 0;
  if (node.is("tenon::Quantize")) {
    const Tile zero_point = e.operands.size() > 1 ? e.y() : kNone;
    return quantize_to_codes(b, e.x(), zero_point, e.output_type(), saturate);
  }
  if (!node.is("Cast")) throw InternalError(fmt::format("{} does not make codes", node.op));
  const auto mode = round_mode(node);
  if (!mode) throw InternalError("a Cast with an unknown round_mode");
  return cast_to_codes(b, e.x(), e.input_type(0), e.output_type(), {saturate, *mode});
}

Tile emit_pointwise(Builder& b, const ir::Graph& body, const ir::Node& node,
                    std::span<const Tile> operands) {
  if (makes_codes(node)) {
    return dequantize_tile(b, emit_codes(b, body, node, operands),
                           body.value(node.output(0)).dtype);
  }
  const Entry* entry = find_entry(node.op);
  if (entry == nullptr) throw InternalError(fmt::format("no rule for {}", node.op));
  Emission e{b, body, node, broadcast_operands(b, operands)};
  return entry->rule(e);
}

}  // namespace tenon::kernels
