// Every pointwise primitive and every cast, alone in a loop, on ordinary and special values.
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr std::array kFloats{DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr std::array kIntegers{DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                               DType::kI32, DType::kU32, DType::kI64, DType::kU64};
constexpr int64_t kElements = 333;

// Units in the last place that a result may be off: transcendentals, and what is computed in f32
// and rounded once.
double ulps(DType dtype, bool transcendental) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return transcendental ? 8 : 4;
  return transcendental ? 2 : 1;
}

Tolerance ulp_tolerance(DType dtype, bool transcendental) {
  const double relative = 2 * unit_roundoff(dtype) * ulps(dtype, transcendental);
  return [relative](size_t, int64_t, double expected) { return relative * std::fabs(expected); };
}

ReferenceTensor sample(DType dtype, double low, double high, bool special, std::mt19937& random) {
  ReferenceTensor x = random_tensor(dtype, {kElements}, random);
  for (int64_t i = 0; x.is_real() && bit_width(dtype) > 8 && i < kElements; ++i) {
    const double value = low + (high - low) * (x.number(i) + 1) / 2;
    x.set(i, decode(dtype, encode(dtype, value)));
  }
  if (special && x.is_real() && bit_width(dtype) > 8) {
    const std::array values{0.0, -0.0, double(INFINITY), -double(INFINITY), double(NAN), 1.0, -1.0};
    for (size_t i = 0; i < values.size(); ++i) x.set(static_cast<int64_t>(7 * i), values[i]);
  }
  return x;
}

// Runs `op` over inputs that broadcast, inside one loop; the dims are open.
std::string judge(const std::string& op, const std::vector<ReferenceTensor>& inputs, DType result,
                  const Tolerance& tolerance) {
  std::string outer, inner, names;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view type = name(inputs[i].dtype);
    outer += fmt::format("input %x{}: {}[n]\n", i, type);
    inner += fmt::format("input %a{}: {}[n]\n", i, type);
    names += fmt::format("{}%x{}", i ? ", " : "", i);
  }
  std::string operands = names;
  for (char& c : operands) c = c == 'x' ? 'a' : c;
  const size_t brace = op.find('{');
  const std::string call = op.substr(0, brace) + "(" + operands + ")" +
                           (brace == std::string::npos ? "" : " " + op.substr(brace));
  const std::string text = fmt::format(
      "graph g {{\n{}%y: {}[n] = tenon::Loop({}) body {{\n{}%r: {}[n] = {}\noutput %r\n}}\noutput "
      "%y\n}}",
      outer, name(result), names, inner, name(result), call);
  const ir::Graph graph = ir::parse(text);
  if (const Support support = runs(graph, conformance_settings()); !support) return support.reason;
  const std::unique_ptr<Executable> executable = build_for_test(graph, conformance_settings());
  return disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                      tolerance);
}

struct Unary {
  const char* op;
  double low, high;
  bool transcendental = true;
};
constexpr auto kUnary = std::to_array<Unary>({
    {"Neg", -4, 4, false},   {"Abs", -4, 4, false},
    {"Sign", -4, 4, false},  {"Floor", -4, 4, false},
    {"Ceil", -4, 4, false},  {"Round", -4, 4, false},
    {"Sqrt", 0, 100, false}, {"Reciprocal", 0.1, 9, false},
    {"Exp", -20, 10},        {"Log", 0.001, 100},
    {"Sin", -10, 10},        {"Cos", -10, 10},
    {"Tan", -1.4, 1.4},      {"Asin", -1, 1},
    {"Acos", -1, 1},         {"Atan", -9, 9},
    {"Sinh", -5, 5},         {"Cosh", -5, 5},
    {"Tanh", -5, 5},         {"Asinh", -9, 9},
    {"Acosh", 1, 9},         {"Atanh", -0.99, 0.99},
    {"Erf", -3, 3},
});

TEST(ConformancePointwise, UnaryFunctionsOfFloats) {
  std::mt19937 random(1);
  for (const Unary& unary : kUnary) {
    for (const DType dtype : kFloats) {
      const ReferenceTensor x = sample(dtype, unary.low, unary.high, true, random);
      EXPECT_EQ(judge(unary.op, {x}, dtype, ulp_tolerance(dtype, unary.transcendental)), "")
          << unary.op << " of " << name(dtype);
    }
  }
}

TEST(ConformancePointwise, BinaryFunctionsOfFloats) {
  std::mt19937 random(2);
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Min", "Max", "Mod{fmod=1}", "Pow"}) {
    for (const DType dtype : kFloats) {
      const bool power = std::string_view(op) == "Pow";
      const ReferenceTensor a = sample(dtype, power ? 0.1 : -4, 4, !power, random);
      const ReferenceTensor b = sample(dtype, power ? -3 : 0.5, 4, false, random);
      EXPECT_EQ(judge(op, {a, b}, dtype, ulp_tolerance(dtype, power)), "")
          << op << " of " << name(dtype);
    }
  }
}

TEST(ConformancePointwise, ComparisonsOfEveryType) {
  std::mt19937 random(3);
  const Tolerance exact = [](size_t, int64_t, double) { return 0; };
  for (const char* op : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
    for (const auto& types : {std::span<const DType>(kFloats), std::span<const DType>(kIntegers)}) {
      for (const DType dtype : types) {
        const ReferenceTensor a = sample(dtype, -2, 2, true, random);
        ReferenceTensor b = sample(dtype, -2, 2, false, random);
        for (int64_t i = 0; i < kElements; i += 3) b.copy_element(i, a, i);
        EXPECT_EQ(judge(op, {a, b}, DType::kBool, exact), "") << op << " of " << name(dtype);
      }
    }
  }
}

TEST(ConformancePointwise, IntegersWrapAround) {
  std::mt19937 random(4);
  const Tolerance exact = [](size_t, int64_t, double) { return 0; };
  for (const DType dtype : kIntegers) {
    for (const char* op : {"Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitwiseAnd",
                           "BitwiseOr", "BitwiseXor"}) {
      const ReferenceTensor a = sample(dtype, 0, 0, false, random);
      ReferenceTensor b = sample(dtype, 0, 0, false, random);
      for (int64_t i = 0; i < kElements; ++i) {
        if (b.number(i) == 0) b.set_integer(i, 3);
      }
      EXPECT_EQ(judge(op, {a, b}, dtype, exact), "") << op << " of " << name(dtype);
    }
    for (const char* op : {"Abs", "Sign", "BitwiseNot"}) {
      const ReferenceTensor a = sample(dtype, 0, 0, false, random);
      EXPECT_EQ(judge(op, {a}, dtype, exact), "") << op << " of " << name(dtype);
    }
  }
}

TEST(ConformancePointwise, PowersOfIntegersWrapAround) {
  std::mt19937 random(6);
  const Tolerance exact = [](size_t, int64_t, double) { return 0; };
  for (const DType base : kIntegers) {
    for (const DType exponent : {base, DType::kI32}) {
      if (base == DType::kU64 && exponent != base) continue;  // in f64, which does not wrap
      const ReferenceTensor a = sample(base, 0, 0, false, random);
      ReferenceTensor b = sample(exponent, 0, 0, false, random);
      for (int64_t i = 0; i < kElements; ++i) {
        b.set_integer(i, i % 70 - (is_signed(exponent) ? 5 : 0));
      }
      ReferenceTensor small = a;
      for (int64_t i = 0; i < kElements; ++i) {
        small.set_integer(i, i % 9 - (is_signed(base) ? 4 : 0));
      }
      for (const ReferenceTensor& x : {a, small}) {
        EXPECT_EQ(judge("Pow", {x, b}, base, exact), "") << name(base) << " " << name(exponent);
      }
    }
  }
}

// What ONNX leaves undefined: a float beyond the integer's reach.
ReferenceTensor within_reach(ReferenceTensor x, DType to) {
  if (!is_integer(to)) return x;
  const double limit = std::ldexp(1, std::min(bit_width(to), 31) - 1) - 1;
  for (double& value : x.reals) {
    if (!(std::fabs(value) <= limit)) value = 1;
    if (!is_signed(to)) value = std::fabs(value);
  }
  return x.rounded();
}

bool is_stored_only(DType dtype) {
  return bit_width(dtype) < 8 || is_small_float(dtype) || dtype == DType::kI8 ||
         bit_width(dtype) == 16;
}

TEST(ConformancePointwise, CastsBetweenAllTypes) {
  constexpr std::array kTypes{
      DType::kBool,       DType::kI2,     DType::kU2,         DType::kI4,     DType::kU4,
      DType::kI8,         DType::kU8,     DType::kI16,        DType::kU16,    DType::kI32,
      DType::kU32,        DType::kI64,    DType::kU64,        DType::kF4E2M1, DType::kF8E4M3FN,
      DType::kF8E4M3FNUZ, DType::kF8E5M2, DType::kF8E5M2FNUZ, DType::kF8E8M0, DType::kF16,
      DType::kBF16,       DType::kF32,    DType::kF64};
  std::mt19937 random(5);
  const Tolerance exact = [](size_t, int64_t, double) { return 0; };
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      // Two storage types meet only by way of a type that is computed in.
      if (from == to || (is_stored_only(from) && is_stored_only(to))) continue;
      const ReferenceTensor x = within_reach(sample(from, -500, 500, true, random), to);
      for (const int saturate : {1, 0}) {
        if (saturate == 0 && !(is_small_float(to) && is_floating(from))) continue;
        const std::string op = fmt::format("Cast{{saturate={}}}", saturate);
        EXPECT_EQ(judge(op, {x}, to, exact), "") << name(from) << " to " << name(to) << " " << op;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
