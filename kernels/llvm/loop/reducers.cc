#include "kernels/llvm/loop/reducers.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/pointwise.h"

namespace tenon::kernels {
namespace {

using codegen::Fn;
using codegen::kNone;

enum class Neutral { kZero, kOne, kLowest, kHighest };

struct Rule {
  std::string_view op;
  Fn combine;
  Fn combine_bools;  // kNone: bools cannot be reduced so
  Neutral neutral;
};

constexpr auto kRules = std::to_array<Rule>({
    {"ReduceSum", Fn::kAdd, Fn::kNone, Neutral::kZero},
    {"ReduceMean", Fn::kAdd, Fn::kNone, Neutral::kZero},
    {"ReduceProd", Fn::kMul, Fn::kNone, Neutral::kOne},
    {"ReduceMax", Fn::kMax, Fn::kOr, Neutral::kLowest},
    {"ReduceMin", Fn::kMin, Fn::kAnd, Neutral::kHighest},
    {"ArgMax", Fn::kMax, Fn::kNone, Neutral::kLowest},
    {"ArgMin", Fn::kMin, Fn::kNone, Neutral::kHighest},
});

const Rule* find_rule(std::string_view op) {
  const auto found =
      std::find_if(kRules.begin(), kRules.end(), [&](const Rule& rule) { return rule.op == op; });
  return found == kRules.end() ? nullptr : &*found;
}

const Rule& rule_of(const ir::Node& node) {
  const Rule* rule = find_rule(node.op);
  if (rule == nullptr) throw InternalError(fmt::format("no reduction {}", node.op));
  return *rule;
}

int64_t lowest_integer(DType type) {
  if (!is_signed(type)) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - bit_width(type));
}

int64_t highest_integer(DType type) {
  if (is_signed(type)) return ~lowest_integer(type);
  return static_cast<int64_t>(~uint64_t{0} >> (64 - bit_width(type)));
}

Tile neutral_tile(codegen::Builder& b, Neutral neutral, DType type, const std::vector<int>& shape) {
  const bool whole = !is_floating(type);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool is_bool = type == DType::kBool;
  switch (neutral) {
    case Neutral::kZero:
      return b.constant(type, 0, shape);
    case Neutral::kOne:
      return b.constant(type, 1, shape);
    case Neutral::kLowest:
      return whole ? b.integer_constant(type, is_bool ? 0 : lowest_integer(type), shape)
                   : b.constant(type, -kInfinity, shape);
    case Neutral::kHighest:
      return whole ? b.integer_constant(type, is_bool ? 1 : highest_integer(type), shape)
                   : b.constant(type, kInfinity, shape);
  }
  throw InternalError("a neutral element of no kind");
}

Fn combiner(const Rule& rule, DType type) {
  return type == DType::kBool ? rule.combine_bools : rule.combine;
}

Tile fit(codegen::Builder& b, Tile tile, const std::vector<int>& shape) {
  return b.type(tile).shape == shape ? tile : b.splat(tile, shape);
}

}  // namespace

bool is_reduction(const ir::Node& node) { return find_rule(node.op) != nullptr; }

bool needs_position(const ir::Node& node) { return node.is("ArgMax") || node.is("ArgMin"); }

size_t Reducer::width() const { return needs_position(node) ? 2 : 1; }

Accumulator Reducer::start() const {
  Accumulator accumulator{neutral_tile(b, rule_of(node).neutral, type, shape)};
  // No position yet: beyond every true one, so that the first element wins even where it is equal
  // to the neutral element.
  if (needs_position(node)) accumulator.push_back(b.integer_constant(DType::kI64, -1, shape));
  return accumulator;
}

Accumulator Reducer::take(const Accumulator& so_far, Tile operand, Tile position, Tile mask) const {
  const Rule& rule = rule_of(node);
  operand = fit(b, operand, shape);
  if (!needs_position(node)) {
    if (mask != kNone)
      operand = b.select(mask, operand, neutral_tile(b, rule.neutral, type, shape));
    return {b.binary(combiner(rule, type), so_far[0], operand)};
  }
  position = fit(b, position, shape);
  const bool last = node.integer("select_last_index", 0) != 0;
  const Fn better = node.is("ArgMax") ? (last ? Fn::kGreaterEqual : Fn::kGreater)
                                      : (last ? Fn::kLessEqual : Fn::kLess);
  const Tile none_yet = b.compare(Fn::kLess, so_far[1], b.integer_constant(DType::kI64, 0, shape));
  Tile wins = b.binary(Fn::kOr, b.compare(better, operand, so_far[0]), none_yet);
  if (mask != kNone) wins = b.binary(Fn::kAnd, wins, mask);
  return {b.select(wins, operand, so_far[0]), b.select(wins, position, so_far[1])};
}

Tile Reducer::finish(Accumulator accumulator, bool fold_lanes) const {
  const Rule& rule = rule_of(node);
  if (needs_position(node)) {
    if (!fold_lanes) return accumulator[1];
    // Of the lanes that hold the best value, the first (or last) position.
    const bool last = node.integer("select_last_index", 0) != 0;
    const Tile zero = b.integer_constant(DType::kI64, 0, shape);
    const Tile taken = b.compare(Fn::kGreaterEqual, accumulator[1], zero);
    const Tile counted =
        b.select(taken, accumulator[0], neutral_tile(b, rule.neutral, type, shape));
    const Tile best = b.splat(b.reduce(rule.combine, counted, 0), shape);
    const Tile among = b.binary(Fn::kAnd, taken, b.compare(Fn::kEqual, accumulator[0], best));
    const int64_t beyond = last ? -1 : std::numeric_limits<int64_t>::max();
    const Tile positions =
        b.select(among, accumulator[1], b.integer_constant(DType::kI64, beyond, shape));
    const Tile found = b.reduce(last ? Fn::kMax : Fn::kMin, positions, 0);
    // No lane equals a NaN: any position that exists will do.
    const Tile fallback = b.integer_constant(DType::kI64, 0);
    const Tile lost = b.compare(Fn::kEqual, found, b.integer_constant(DType::kI64, beyond));
    return b.select(lost, fallback, found);
  }
  Tile result = accumulator[0];
  if (fold_lanes) result = b.reduce(combiner(rule, type), result, 0);
  if (!node.is("ReduceMean")) return result;
  return b.div(result, fit(b, b.from_index(count, type), b.type(result).shape));
}

Support supports_reduction(const ir::Graph& body, const ir::Node& node) {
  const Rule* rule = find_rule(node.op);
  if (rule == nullptr) return Support::no(fmt::format("no kernel for the reduction {}", node.op));
  const DType type = body.value(node.input(0)).dtype;
  if (Support answer = supports_type(type); !answer) return answer;
  if (combiner(*rule, compute_type(type)) == Fn::kNone) {
    return Support::no(fmt::format("{} of {} is not supported", node.op, name(type)));
  }
  return Support::yes();
}

}  // namespace tenon::kernels
