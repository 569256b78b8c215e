// Reductions: one sorted `axes` attribute, keepdims=1, and only Sum, Mean, Max, Min, Prod, ArgMax
// and ArgMin left.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "graph_partitioner/passes/normalize/rules.h"
#include "graph_partitioner/pattern.h"

namespace tenon::normalization {
namespace {

using ir::kNoValue;
using ir::ValueId;
using Axes = std::vector<int64_t>;

std::optional<Axes> given_axes(Rewrite& r) {
  if (r.has_input(1)) return constant_integers(r.graph(), r.input(1));
  return r.node().integers("axes");
}

std::optional<Axes> reduced_axes(Rewrite& r, size_t rank) {
  const auto given = given_axes(r);
  if (!given) return std::nullopt;
  Axes axes = *given;
  if (axes.empty() && r.node().integer("noop_with_empty_axes", 0) == 0) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (int64_t& axis : axes) {
    if (axis < 0) axis += static_cast<int64_t>(rank);
    if (axis < 0 || axis >= static_cast<int64_t>(rank)) return std::nullopt;
  }
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

Shape without(const Shape& shape, const Axes& axes) {
  Shape result;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i))) {
      result.push_back(shape[i]);
    }
  }
  return result;
}

// `reduced` has its axes kept; the node's output may want them gone.
bool finish(Rewrite& r, ValueId reduced, const Shape& shape, const Axes& axes) {
  const DType wanted = r.dtype(r.output());
  const ValueId result = r.emit.cast(reduced, wanted);
  if (r.node().integer("keepdims", 1) != 0) return r.replace(0, result);
  Shape to = without(shape, axes);
  r.become("Reshape", {result});
  r.set_shape(0, std::move(to));
  return true;
}

bool is_canonical(const ir::Node& node, const Axes& axes) {
  return node.inputs.size() == 1 && node.has("keepdims") && node.integer("keepdims", 0) == 1 &&
         node.has("axes") && node.integers("axes") == axes && node.attributes.size() == 2;
}

bool plain(Rewrite& r) {
  const auto shape = r.shape(r.input(0));
  if (!shape) return false;
  const auto axes = reduced_axes(r, shape->size());
  if (!axes || is_canonical(r.node(), *axes)) return false;
  if (axes->empty()) return r.replace(0, r.input(0));
  return finish(r, r.emit.reduce(r.node().op, r.input(0), *axes), *shape, *axes);
}

ValueId square(Rewrite& r, ValueId x) { return r.emit.binary("Mul", x, x); }

// The largest element is taken out first, so that Exp cannot overflow; an infinite one stays in,
// so that no difference of infinities appears.
ValueId log_sum_exp(Rewrite& r, ValueId x, const Axes& axes) {
  const ValueId largest = r.emit.reduce("ReduceMax", x, axes);
  const ValueId size = r.emit.unary("Abs", largest);
  const ValueId is_infinite = r.emit.compare("Equal", size, r.emit.scalar(r.dtype(x), HUGE_VAL));
  const ValueId shift = r.emit.where(is_infinite, r.emit.scalar_like(x, 0.0), largest);
  const ValueId powers = r.emit.unary("Exp", r.emit.binary("Sub", x, shift));
  const ValueId total = r.emit.reduce("ReduceSum", powers, axes);
  return r.emit.binary("Add", r.emit.unary("Log", total), shift);
}

ValueId composite_of(Rewrite& r, ValueId x, const Axes& axes) {
  const std::string& op = r.node().op;
  const auto sum = [&](ValueId of) {
    return axes.empty() ? of : r.emit.reduce("ReduceSum", of, axes);
  };
  if (op == "ReduceL1") return sum(r.emit.unary("Abs", x));
  if (op == "ReduceL2") return r.emit.unary("Sqrt", sum(square(r, x)));
  if (op == "ReduceSumSquare") return sum(square(r, x));
  if (op == "ReduceLogSum") return r.emit.unary("Log", sum(x));
  return axes.empty() ? x : log_sum_exp(r, x, axes);
}

bool composite(Rewrite& r) {
  const auto shape = r.shape(r.input(0));
  if (!shape) return false;
  const auto axes = reduced_axes(r, shape->size());
  if (!axes) return false;
  const bool exact_in_integers = r.node().is("ReduceL1") || r.node().is("ReduceSumSquare");
  if (!is_floating(r.dtype(r.input(0))) && !exact_in_integers) return false;
  // f16 would overflow in the squares.
  const ValueId wide = r.emit.widen(r.input(0));
  return finish(r, composite_of(r, wide, *axes), *shape, *axes);
}

bool arg(Rewrite& r) {
  const auto shape = r.shape(r.input(0));
  if (!shape) return false;
  const int64_t given = r.node().integer("axis", 0);
  const auto axis = r.axis(given, *shape);
  const bool keeps = r.node().integer("keepdims", 1) != 0;
  if (!axis || (keeps && *axis == given && r.node().has("axis"))) return false;
  Attributes attributes = {{"axis", *axis}, {"keepdims", int64_t{1}}};
  if (r.node().integer("select_last_index", 0) != 0) {
    attributes["select_last_index"] = int64_t{1};
  }
  if (keeps) {
    r.become(r.node().op, {r.input(0)}, std::move(attributes));
    return true;
  }
  Shape kept = *shape;
  kept[*axis] = 1;
  ir::Node found;
  found.op = r.node().op;
  found.inputs = {r.input(0)};
  found.attributes = std::move(attributes);
  const ValueId index = r.emit.emit(std::move(found), DType::kI64, kept);
  r.become("Reshape", {index});
  r.set_shape(0, without(*shape, {*axis}));
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"ReduceSum", plain},
    {"ReduceMean", plain},
    {"ReduceMax", plain},
    {"ReduceMin", plain},
    {"ReduceProd", plain},
    {"ReduceL1", composite},
    {"ReduceL2", composite},
    {"ReduceSumSquare", composite},
    {"ReduceLogSum", composite},
    {"ReduceLogSumExp", composite},
    {"ArgMax", arg},
    {"ArgMin", arg},
};

}  // namespace

std::span<const NamedRewrite> reduction_rules() { return kRules; }

}  // namespace tenon::normalization
