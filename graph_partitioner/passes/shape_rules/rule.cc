#include "graph_partitioner/passes/shape_rules/rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/dim_division.h"

namespace tenon {

using ir::kNoValue;

const Shape* NodeFacts::shape(size_t index) const {
  const ir::ValueId id = node_.input(index);
  if (id == kNoValue || !graph_.value(id).shape) return nullptr;
  return &*graph_.value(id).shape;
}

DType NodeFacts::dtype(size_t index) const {
  const ir::ValueId id = node_.input(index);
  return id == kNoValue ? DType::kUndefined : graph_.value(id).dtype;
}

DType NodeFacts::output_dtype(size_t index) const {
  const ir::ValueId id = node_.output(index);
  return id == kNoValue ? DType::kUndefined : graph_.value(id).dtype;
}

const std::string& NodeFacts::output_name(size_t index) const {
  return graph_.value(node_.outputs.at(index)).name;
}

const Shape* NodeFacts::given_shape(size_t output) const {
  const ir::ValueId id = node_.output(output);
  if (id == kNoValue || !graph_.value(id).shape) return nullptr;
  return &*graph_.value(id).shape;
}

ir::TensorPtr NodeFacts::constant(size_t index) const {
  const ir::ValueId id = node_.input(index);
  if (id == kNoValue || !graph_.value(id).is_constant()) return nullptr;
  return graph_.value(id).constant;
}

std::optional<std::vector<Dim>> NodeFacts::elements(size_t index) const {
  const ir::ValueId id = node_.input(index);
  if (id == kNoValue) return std::nullopt;
  const ir::Value& value = graph_.value(id);
  if (value.elements) return value.elements;
  return value.is_constant() ? integer_elements(*value.constant) : std::nullopt;
}

std::optional<std::vector<Dim>> integer_elements(const ir::Tensor& tensor) {
  const bool countable = is_integer(tensor.dtype) || tensor.dtype == DType::kBool;
  if (!countable || tensor.elements() > static_cast<int64_t>(kMaxElements)) return std::nullopt;
  std::vector<Dim> result;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    result.emplace_back(load_integer(tensor.dtype, tensor.data, i));
  }
  return result;
}

namespace {

// Up to which all whole numbers are exact, and so is the difference of two.
std::optional<int64_t> exact_below(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return int64_t{1} << 52;
    case DType::kF32:
      return int64_t{1} << 23;
    case DType::kF16:
      return int64_t{1} << 10;
    case DType::kBF16:
      return int64_t{1} << 7;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Dim> NodeFacts::whole_number(size_t index) {
  if (const auto known = elements(index)) {
    return known->size() == 1 ? std::optional(known->front()) : std::nullopt;
  }
  const auto limit = exact_below(dtype(index));
  if (!limit) return std::nullopt;
  if (const ir::TensorPtr tensor = constant(index)) {
    if (tensor->elements() != 1) return std::nullopt;
    const double value = load_element(tensor->dtype, tensor->data, 0);
    const bool is_whole =
        value == std::floor(value) && std::abs(value) <= static_cast<double>(*limit);
    return is_whole ? std::optional(Dim(static_cast<int64_t>(value))) : std::nullopt;
  }
  const ir::Node* cast = has_input(index) ? graph_.producer(node_.input(index)) : nullptr;
  if (!cast || !cast->is("Cast")) return std::nullopt;
  const auto& whole = graph_.value(cast->input(0)).elements;
  if (!whole || whole->size() != 1) return std::nullopt;
  require(whole->front(), ir::Relation::kAtMost, *limit);
  require(-*limit, ir::Relation::kAtMost, whole->front());
  return whole->front();
}

std::optional<std::vector<int64_t>> NodeFacts::integers(size_t index) const {
  const auto dims = elements(index);
  if (!dims || !is_static(*dims)) return std::nullopt;
  return static_dims(*dims);
}

std::optional<std::vector<int64_t>> NodeFacts::integers_from(std::string_view name,
                                                             size_t index) const {
  if (node_.has(name)) return node_.integers(name);
  return integers(index);
}

namespace {

// Passes multiply sizes and must not fail on the way: those as long as this are not handed on.
bool are_short(const std::vector<Dim>& dims) {
  constexpr size_t kLongest = 4096;
  return std::ranges::all_of(dims, [](const Dim& d) { return d.text().size() < kLongest; });
}

// A number of times a size, and more: batch*n-3*batch where n-4 is one.
bool holds_size(const Dim& dim, const Dim& size) {
  if (size.is_constant()) return false;
  if (never_negative(dim - size)) return true;
  const auto [times, more] = divide_terms(dim, size);
  return !times.is(0) && never_negative(times) && never_negative(more);
}

}  // namespace

void NodeFacts::require(const Dim& left, ir::Relation relation, const Dim& right) {
  const std::optional<bool> known = decide(left, relation, right);
  if (!known) requirements_.push_back({left, relation, right, node_.name, node_.sources});
  if (known != false) return;
  contradict(fmt::format("{}({},{}) does not hold", ir::relation_name(relation), left.text(),
                         right.text()));
}

bool NodeFacts::is_size(const Dim& dim) const {
  if (never_negative(dim)) return true;
  const auto is_asked = [&](const ir::Requirement& required) {
    return required.relation == ir::Relation::kAtMost &&
           holds_size(dim, required.right - required.left);
  };
  const auto has_it = [&](ir::ValueId input) {
    const auto& shape = graph_.value(input).shape;
    return shape && std::ranges::find(*shape, dim) != shape->end();
  };
  return std::ranges::any_of(graph_.requirements(), is_asked) ||
         std::ranges::any_of(graph_.inputs(), has_it);
}

void NodeFacts::contradict_rank(size_t index, size_t wanted) {
  contradict(fmt::format("operand {} has rank {}, not {}", index, shape(index)->size(), wanted));
}

void NodeFacts::require_shape(size_t index, const Shape& wanted) {
  const Shape* own = shape(index);
  if (!own) return;
  if (own->size() != wanted.size()) return contradict_rank(index, wanted.size());
  for (size_t axis = 0; axis < wanted.size(); ++axis) require_equal((*own)[axis], wanted[axis]);
}

void NodeFacts::require_stretches(size_t index, const Shape& wide) {
  const Shape* own = shape(index);
  if (!own) return;
  if (own->size() > wide.size()) return contradict_rank(index, wide.size());
  const size_t shift = wide.size() - own->size();
  for (size_t axis = 0; axis < own->size(); ++axis) {
    require((*own)[axis], ir::Relation::kStretches, wide[axis + shift]);
  }
}

void NodeFacts::require_elements(size_t index, const Dim& count) {
  if (shape(index)) require_equal(element_count(*shape(index)), count);
}

void NodeFacts::require_broadcast(const std::vector<Shape>& shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t j = i + 1; j < shapes.size(); ++j) {
      auto a = shapes[i].rbegin();
      for (auto b = shapes[j].rbegin(); a != shapes[i].rend() && b != shapes[j].rend(); ++a, ++b) {
        require(*a, ir::Relation::kBroadcasts, *b);
      }
    }
  }
}

// No size is below 0: what arithmetic made of symbols must not be.
void NodeFacts::set_shape(size_t output, Shape shape) {
  if (output >= shapes_.size() || !are_short(shape)) return;
  for (const Dim& dim : shape) require(0, ir::Relation::kAtMost, dim);
  shapes_[output] = std::move(shape);
}

void NodeFacts::set_elements(size_t output, std::vector<Dim> elements) {
  if (output < elements_.size() && elements.size() <= kMaxElements && are_short(elements)) {
    elements_[output] = std::move(elements);
  }
}

std::optional<size_t> normal_axis(int64_t axis, size_t rank) {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) return std::nullopt;
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

std::optional<std::vector<size_t>> normal_axes(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<size_t> result;
  for (int64_t axis : axes) {
    const auto normal = normal_axis(axis, rank);
    if (!normal) return std::nullopt;
    result.push_back(*normal);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

bool never_negative(const Dim& dim) { return max(dim, 0) == dim; }

namespace {

// Whether two symbolic sizes broadcast (a sequence and the rows of a position table) is a
// requirement: a Run whose sizes do not is refused before a kernel would read past the end.
std::optional<Dim> broadcast_dims(const Dim& a, const Dim& b) {
  if (a == b || b.is(1)) return a;
  if (a.is(1)) return b;
  if (a.is_constant() && b.is_constant()) return std::nullopt;
  return broadcast(a, b);
}

}  // namespace

std::optional<Shape> broadcast_all(const std::vector<Shape>& shapes) {
  Shape result;
  for (const Shape& shape : shapes) {
    Shape wide = result.size() >= shape.size() ? result : shape;
    const Shape& narrow = result.size() >= shape.size() ? shape : result;
    const size_t shift = wide.size() - narrow.size();
    for (size_t i = 0; i < narrow.size(); ++i) {
      const auto dim = broadcast_dims(wide[shift + i], narrow[i]);
      if (!dim) return std::nullopt;
      wide[shift + i] = *dim;
    }
    result = std::move(wide);
  }
  return result;
}

namespace {

// Exporters write "to the end" as a number near the largest integer: no axis is as long as this.
constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 2;

bool is_past_every_end(const Dim& index) { return index.is_constant() && index.value() > kFar; }
bool is_before_every_start(const Dim& index) {
  return index.is_constant() && index.value() < -kFar;
}

// The axis that a slice walks.
struct Axis {
  const Dim& dim;
  const IsSize& is_size;

  Dim not_negative(const Dim& size) const { return is_size(size) ? size : max(size, 0); }
};

// An index of a slice, counted from the front and clamped to [low, high].
std::optional<Dim> slice_bound(const Axis& axis, const Dim& index, const Dim& low,
                               const Dim& high) {
  const auto clamped = [&](const Dim& from_front) {
    const Dim bound = min(from_front, high);
    return low.is(0) ? axis.not_negative(bound) : max(low, bound);
  };
  if (is_past_every_end(index)) return high;
  if (is_before_every_start(index)) return low;
  if (index.is_constant()) return clamped(index.value() < 0 ? axis.dim + index : index);
  if (axis.is_size(index)) return clamped(index);
  // -s counts from the end unless s is 0 at run time, which no model means.
  if (axis.is_size(Dim(0) - index - 1)) return clamped(axis.dim + index);
  return std::nullopt;
}

// ONNX Runtime takes these two as the end of the walk, wherever it goes.
bool is_endless(const Dim& end) {
  return end.is(std::numeric_limits<int32_t>::max()) || end.is(std::numeric_limits<int64_t>::max());
}

// A start past the end needs no clamp: nothing is taken then. The last k begin at dim - min(dim,
// k), which leaves min(dim, k) as their number.
std::optional<Dim> forward_start(const Axis& axis, const Dim& start) {
  if (start.is_constant() && start.value() < 0) {
    if (is_before_every_start(start)) return Dim(0);
    return axis.dim - min(axis.dim, -start.value());
  }
  if (is_past_every_end(start)) return axis.dim;
  if (axis.is_size(start)) return start;
  return slice_bound(axis, start, 0, axis.dim);
}

}  // namespace

std::optional<SliceExtent> slice_extent(const Dim& start, const Dim& end, int64_t step,
                                        const Dim& dim, const IsSize& is_size) {
  constexpr int64_t kMostStep = std::numeric_limits<int32_t>::max();
  if (step == 0 || step > kMostStep || step < -kMostStep) return std::nullopt;
  const Axis axis{dim, is_size};
  if (step > 0) {
    const auto from = forward_start(axis, start);
    const auto to = is_endless(end) ? dim : slice_bound(axis, end, 0, dim);
    if (!from || !to) return std::nullopt;
    return SliceExtent{*from, axis.not_negative(ceil_div(*to - *from, step))};
  }
  // Walking backwards, a start past the end is clamped to the last element; an end may lie before
  // the first one.
  const auto from = start.is(-1) ? dim - 1 : slice_bound(axis, start, 0, dim - 1);
  const auto to = is_endless(end) ? Dim(-1) : slice_bound(axis, end, -1, dim - 1);
  if (!from || !to) return std::nullopt;
  // An axis without elements has no last one to begin at.
  const Dim most = ceil_div(dim, -step);
  return SliceExtent{*from, min(most, max(ceil_div(*from - *to, -step), 0))};
}

}  // namespace tenon
