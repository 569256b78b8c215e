// Ops that move no number: dropped, or a Reshape, a Transpose or a tenon::Slice.
#include <algorithm>
#include <numeric>

#include "graph_partitioner/passes/normalize/rules.h"
#include "graph_partitioner/pattern.h"

namespace tenon::normalization {
namespace {

using ir::kNoValue;
using ir::ValueId;

bool drop(Rewrite& r) { return r.replace(0, r.input(0)); }

// At inference everything is kept, and the mask says so.
bool dropout(Rewrite& r) {
  // Before opset 7 it trains unless told that it does not.
  const int version = r.node().since_version;
  if (version > 0 && version < 7 && r.node().integer("is_test", 0) == 0) return false;
  const ValueId training = r.input(2);
  if (training != kNoValue && scalar_constant(r.graph(), training) != 0.0) return false;
  if (r.is_used(1)) {
    const auto shape = r.shape(r.input(0));
    if (!shape || r.dtype(r.output(1)) != DType::kBool) return false;
    r.replace(1, r.emit.expand(r.emit.scalar(DType::kBool, 1.0), *shape));
  }
  r.graph().node(r.id()).outputs.resize(1);
  return identity(r);
}

// A chain of one.
bool variadic(Rewrite& r) { return r.node().inputs.size() == 1 && identity(r); }

bool cast(Rewrite& r) {
  if (r.dtype(r.input(0)) == r.dtype(r.output()) && drop(r)) return true;
  if (r.node().is("Cast") && !r.node().has("to")) return false;
  Attributes kept = r.node().attributes;
  kept.erase("to");
  r.become("Cast", {r.input(0)}, std::move(kept));
  return true;
}

bool is_permutation(const std::vector<int64_t>& perm, size_t rank) {
  std::vector<int64_t> sorted = perm, expected(rank);
  std::sort(sorted.begin(), sorted.end());
  std::iota(expected.begin(), expected.end(), 0);
  return sorted == expected;
}

// Only axes of size 1 change their place: the bytes stay where they are.
bool keeps_bytes(const std::vector<int64_t>& perm, const Shape& shape) {
  int64_t last = -1;
  for (const int64_t axis : perm) {
    if (shape[axis].is(1)) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

bool transpose(Rewrite& r) {
  const auto& known = r.graph().value(r.input(0)).shape;
  std::vector<int64_t> perm = r.node().integers("perm");
  if (perm.empty()) {
    if (!known) return false;
    perm.resize(known->size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  if (!is_permutation(perm, perm.size()) || (known && known->size() != perm.size())) return false;
  if (std::is_sorted(perm.begin(), perm.end()) && drop(r)) return true;
  const auto from = r.shape(r.input(0));
  if (from && keeps_bytes(perm, *from)) {
    Shape to;
    for (const int64_t axis : perm) to.push_back((*from)[axis]);
    r.become("Reshape", {r.input(0)});
    r.set_shape(0, std::move(to));
    return true;
  }
  const ir::Node* inner = r.graph().producer(r.input(0));
  if (inner != nullptr && inner->is("Transpose") && inner->has("perm")) {
    const std::vector<int64_t> first = inner->integers("perm");
    const ValueId source = inner->input(0);
    r.absorb(inner->sources);
    for (int64_t& axis : perm) axis = first.at(axis);
    r.become("Transpose", {source}, {{"perm", perm}});
    return true;
  }
  if (!r.node().integers("perm").empty()) return false;
  r.become("Transpose", {r.input(0)}, {{"perm", perm}});
  return true;
}

bool reshape(Rewrite& r) {
  const auto from = r.shape(r.input(0)), to = r.shape(r.output());
  if (from && to && *from == *to && drop(r)) return true;
  if (r.has_input(1)) return false;  // shape arithmetic's business
  const ir::Node* inner = r.graph().producer(r.input(0));
  if (inner == nullptr || !inner->is("Reshape")) return false;
  const ValueId source = inner->input(0);
  r.absorb(inner->sources);
  r.become("Reshape", {source});
  return true;
}

// Flatten, Squeeze, Unsqueeze: inference has worked out the shape.
bool shape_change(Rewrite& r) {
  if (!r.shape(r.output())) return false;
  r.become("Reshape", {r.input(0)});
  return true;
}

// A list of sizes that is an operand: constant, or made of sizes that shape arithmetic has
// followed.
std::optional<std::vector<Dim>> listed_sizes(Rewrite& r, size_t input) {
  if (const auto known = constant_integers(r.graph(), r.input(input))) {
    return std::vector<Dim>(known->begin(), known->end());
  }
  const ir::Node* producer = r.graph().producer(r.input(input));
  if (producer == nullptr || !producer->is("tenon::ShapeValue")) return std::nullopt;
  return r.graph().value(r.input(input)).elements;
}

std::optional<std::vector<Dim>> split_sizes(Rewrite& r, const Dim& whole) {
  const ir::Node& node = r.node();
  const std::vector<int64_t> given = node.integers("split");
  std::optional<std::vector<Dim>> sizes;
  if (r.has_input(1)) {
    sizes = listed_sizes(r, 1);
    if (!sizes) return std::nullopt;
  } else if (!given.empty()) {
    sizes = std::vector<Dim>(given.begin(), given.end());
  }
  if (sizes) return sizes->size() == node.outputs.size() ? sizes : std::nullopt;
  const auto count = static_cast<int64_t>(node.outputs.size());
  const Dim part = ceil_div(whole, count);
  sizes.emplace(count, part);
  sizes->back() = whole - part * (count - 1);
  return sizes;
}

bool split(Rewrite& r) {
  const auto shape = r.shape(r.input(0));
  if (!shape) return false;
  const auto axis = r.axis(r.node().integer("axis", 0), *shape);
  if (!axis) return false;
  const auto sizes = split_sizes(r, (*shape)[*axis]);
  if (!sizes) return false;
  Dim start = 0;
  for (size_t i = 0; i < sizes->size(); ++i) {
    Shape to = *shape;
    to[*axis] = (*sizes)[i];
    std::vector<Dim> starts(shape->size(), 0);
    starts[*axis] = start;
    start = start + (*sizes)[i];
    if (!r.is_used(i)) continue;
    const std::vector<int64_t> steps(shape->size(), 1);
    if (!r.replace(i, r.emit.slice(r.input(0), starts, steps, to))) return false;
  }
  return true;
}

// x[:, 2, :] by Gather with one fixed index. Integers are left to shape arithmetic.
bool gather_one(Rewrite& r) {
  const auto shape = r.shape(r.input(0)), to = r.shape(r.output());
  const auto indices = constant_integers(r.graph(), r.input(1));
  if (!shape || !to || !indices || indices->size() != 1) return false;
  if (!is_floating(r.dtype(r.input(0))) || is_packed(r.dtype(r.input(0)))) return false;
  const auto axis = r.axis(r.node().integer("axis", 0), *shape);
  if (!axis || !(*shape)[*axis].is_constant()) return false;
  const int64_t size = (*shape)[*axis].value();
  const int64_t index = indices->front() < 0 ? indices->front() + size : indices->front();
  if (index < 0 || index >= size) return false;
  Shape one = *shape;
  one[*axis] = 1;
  std::vector<Dim> starts(shape->size(), 0);
  starts[*axis] = index;
  const std::vector<int64_t> steps(shape->size(), 1);
  const ValueId picked = r.emit.slice(r.input(0), starts, steps, one);
  r.become("Reshape", {picked});
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"Identity", identity},    {"Dropout", dropout},      {"Cast", cast},
    {"CastLike", cast},        {"Transpose", transpose},  {"Reshape", reshape},
    {"Flatten", shape_change}, {"Squeeze", shape_change}, {"Unsqueeze", shape_change},
    {"Split", split},          {"Gather", gather_one},    {"Sum", variadic},
    {"Mean", variadic},        {"Min", variadic},         {"Max", variadic},
};

}  // namespace

bool identity(Rewrite& r) {
  if (drop(r)) return true;
  if (!r.shape(r.input(0))) return false;
  r.become("Reshape", {r.input(0)});
  return true;
}

std::span<const NamedRewrite> view_rules() { return kRules; }

}  // namespace tenon::normalization
