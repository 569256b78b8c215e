// Sizes that exporters compute in floats: ceil((n - k) / stride + 1) between two Casts.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/convert.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

struct Fraction {
  Dim numerator;
  int64_t denominator = 1;
  // How far the float is from it at most, in units of its last bit over the denominator; 0: not at
  // all. A quotient that is rounded is exact where it is a whole number.
  Dim error = 0;

  bool is_whole() const { return denominator == 1 && error.is(0); }
};
using Fractions = std::vector<Fraction>;
using MaybeFractions = std::optional<Fractions>;

constexpr int64_t kMostDenominator = 1 << 16;

// Numbers are fractions of a small power of two, or none of these.
std::optional<Fraction> fraction_of(double number) {
  constexpr double kMostNumber = 1e6;
  constexpr int64_t kMostParts = 256;
  if (!(std::abs(number) < kMostNumber)) return std::nullopt;
  for (int64_t parts = 1; parts <= kMostParts; parts *= 2) {
    const double whole = number * static_cast<double>(parts);
    if (whole == std::floor(whole)) return Fraction{static_cast<int64_t>(whole), parts};
  }
  return std::nullopt;
}

std::optional<Fraction> sum(const Fraction& a, const Fraction& b, int64_t sign) {
  const bool stays_near = (a.error.is(0) && b.error.is(0)) || a.is_whole() || b.is_whole();
  const int64_t denominator = a.denominator * b.denominator;
  if (!stays_near || denominator > kMostDenominator) return std::nullopt;
  return Fraction{a.numerator * b.denominator + b.numerator * a.denominator * sign, denominator,
                  a.error + b.error};
}

// Only of what no step has rounded yet, and by a number.
std::optional<Fraction> product(const Fraction& a, const Fraction& b) {
  if (a.numerator.is_constant() && !b.numerator.is_constant()) return product(b, a);
  const int64_t denominator = a.denominator * b.denominator;
  if (!b.numerator.is_constant() || !a.error.is(0) || !b.error.is(0)) return std::nullopt;
  if (denominator > kMostDenominator) return std::nullopt;
  return Fraction{a.numerator * b.numerator, denominator};
}

std::optional<Fraction> quotient(const Fraction& a, const Fraction& b) {
  if (!b.numerator.is_constant() || b.numerator.value() <= 0) return std::nullopt;
  if (b.numerator.value() > kMostDenominator) return std::nullopt;
  return product(a, {b.denominator, b.numerator.value(), b.error});
}

std::optional<Fraction> combine(const std::string& op, const Fraction& a, const Fraction& b) {
  if (op == "Mul") return product(a, b);
  if (op == "Div") return quotient(a, b);
  return sum(a, b, op == "Add" ? 1 : -1);
}

// The elements of a tensor of floats, and what every one on the way to them was.
class Reader {
 public:
  explicit Reader(NodeFacts& facts) : facts_(facts), graph_(facts.graph()) {}

  MaybeFractions read(ir::ValueId id, int depth = 0) {
    constexpr int kMostSteps = 8;  // both sides of each may be read
    if (id == ir::kNoValue || depth > kMostSteps) return std::nullopt;
    const ir::Value& value = graph_.value(id);
    if (value.is_constant()) return constant(*value.constant);
    const ir::Node* node = graph_.producer(id);
    if (!node) return std::nullopt;
    MaybeFractions result = made_by(*node, depth);
    if (!result || !keeps_apart(value.dtype, *result)) return std::nullopt;
    return result;
  }

 private:
  static MaybeFractions constant(const ir::Tensor& tensor) {
    if (!is_floating(tensor.dtype) || tensor.elements() > static_cast<int64_t>(kMaxElements))
      return std::nullopt;
    Fractions result;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const auto one = fraction_of(load_element(tensor.dtype, tensor.data, i));
      if (!one) return std::nullopt;
      result.push_back(*one);
    }
    return result;
  }

  MaybeFractions made_by(const ir::Node& node, int depth) {
    const auto is_any = [&](std::initializer_list<std::string_view> ops) {
      return std::ranges::any_of(ops, [&](std::string_view op) { return node.is(op); });
    };
    if (is_any({"Add", "Sub", "Mul", "Div"})) return both(node, depth);
    if (node.is("Cast") && is_integer(graph_.value(node.input(0)).dtype)) {
      return integers(node.input(0));
    }
    if (!is_any({"Cast", "Ceil", "Floor", "Identity", "Reshape", "Squeeze", "Unsqueeze"}))
      return std::nullopt;
    MaybeFractions result = read(node.input(0), depth + 1);
    if (!result || !is_any({"Ceil", "Floor"})) return result;
    for (Fraction& one : *result) {
      one = {node.is("Ceil") ? ceil_div(one.numerator, one.denominator)
                             : floor_div(one.numerator, one.denominator)};
    }
    return result;
  }

  MaybeFractions integers(ir::ValueId id) const {
    const auto& elements = graph_.value(id).elements;
    if (!elements) return std::nullopt;
    Fractions result;
    for (const Dim& element : *elements) result.push_back({element});
    return result;
  }

  MaybeFractions both(const ir::Node& node, int depth) {
    const auto a = read(node.input(0), depth + 1), b = read(node.input(1), depth + 1);
    if (!a || !b || a->empty() || b->empty()) return std::nullopt;
    if (a->size() != b->size() && a->size() != 1 && b->size() != 1) return std::nullopt;
    Fractions result;
    for (size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
      const auto one = combine(node.op, (*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i]);
      if (!one) return std::nullopt;
      result.push_back(*one);
    }
    return result;
  }

  // Adds what this step rounds, and asks that all of it together reaches no whole number: another
  // one is a part of the denominator away at least.
  bool keeps_apart(DType dtype, Fractions& fractions) {
    const int bits = dtype == DType::kF32 ? 24 : dtype == DType::kF64 ? 53 : 0;
    if (bits == 0) return false;
    for (Fraction& one : fractions) {
      const bool is_exact = one.error.is(0) && (one.denominator & (one.denominator - 1)) == 0;
      const Dim size = facts_.is_size(one.numerator)
                           ? one.numerator
                           : max(one.numerator, 0) + max(Dim(0) - one.numerator, 0);
      if (!is_exact) one.error = one.error + size;
      facts_.require(is_exact ? size : one.error, ir::Relation::kAtMost,
                     (int64_t{1} << bits) - (int64_t{1} << (bits / 2)));
    }
    return true;
  }

  NodeFacts& facts_;
  const ir::Graph& graph_;
};

}  // namespace

std::optional<std::vector<Dim>> truncated_elements(NodeFacts& facts) {
  NodeFacts trial = facts;
  const MaybeFractions fractions = Reader(trial).read(facts.node().input(0));
  if (!fractions || trial.contradiction()) return std::nullopt;
  std::vector<Dim> result;
  for (const Fraction& one : *fractions) {
    if (one.denominator != 1 && !facts.is_size(one.numerator)) return std::nullopt;
    result.push_back(floor_div(one.numerator, one.denominator));
  }
  for (const ir::Requirement& required : trial.requirements()) {
    facts.require(required.left, required.relation, required.right);
  }
  return result;
}

}  // namespace tenon
