// Elements of small integer tensors as dims: the arithmetic that exporters write between Shape and
// Reshape, done at compile time.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

using Elements = std::vector<Dim>;
using Maybe = std::optional<Dim>;

bool holds_elements(DType dtype) {
  return dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kBool;
}

// Dims do not wrap. What overflows 32 bits even where every size is 1 is left to the kernels; where
// only large sizes do, the Run is refused.
bool fits(DType dtype, const Dim& element) {
  if (dtype != DType::kI32) return true;
  try {
    const int64_t least = element.evaluate([](std::string_view) { return int64_t{1}; });
    return least == static_cast<int32_t>(least);
  } catch (const UserError&) {
    return true;  // these sizes do not fit each other; others do
  }
}

void require_int32(NodeFacts& facts, const Elements& elements) {
  using Limits = std::numeric_limits<int32_t>;
  for (const Dim& element : elements) {
    facts.require(Limits::min(), ir::Relation::kAtMost, element);
    facts.require(element, ir::Relation::kAtMost, Limits::max());
  }
}

void set_if(NodeFacts& facts, std::optional<Elements> elements) {
  const DType dtype = facts.output_dtype(0);
  if (!elements || !holds_elements(dtype)) return;
  const auto fits_dtype = [&](const Dim& element) { return fits(dtype, element); };
  if (!std::ranges::all_of(*elements, fits_dtype)) return;
  if (dtype == DType::kI32) require_int32(facts, *elements);
  facts.set_elements(0, std::move(*elements));
}

// Scalars and equal lengths; that is all that shape arithmetic broadcasts.
template <typename Combine>
std::optional<Elements> zip(const Elements& a, const Elements& b, Combine combine) {
  const size_t count = std::max(a.size(), b.size());
  if ((a.size() != count && a.size() != 1) || (b.size() != count && b.size() != 1)) {
    return std::nullopt;
  }
  Elements result;
  for (size_t i = 0; i < count; ++i) {
    const Maybe element = combine(a[a.size() == 1 ? 0 : i], b[b.size() == 1 ? 0 : i]);
    if (!element) return std::nullopt;
    result.push_back(*element);
  }
  return result;
}

template <typename Combine>
void combine_both(NodeFacts& facts, Combine combine) {
  const auto a = facts.elements(0), b = facts.elements(1);
  if (a && b && facts.input_count() == 2) set_if(facts, zip(*a, *b, combine));
}

template <Maybe (*Combine)(const Dim&, const Dim&)>
void binary(NodeFacts& facts) {
  combine_both(facts, Combine);
}

// Numbers that overflow together with any size: kernels wrap around as ONNX Runtime does.
bool is_extreme(const Dim& dim) {
  constexpr int64_t kFar = int64_t{1} << 62;
  return dim.is_constant() && (dim.value() >= kFar || dim.value() <= -kFar);
}

Maybe add(const Dim& a, const Dim& b) {
  return is_extreme(a) || is_extreme(b) ? std::nullopt : Maybe(a + b);
}
Maybe subtract(const Dim& a, const Dim& b) {
  return is_extreme(a) || is_extreme(b) ? std::nullopt : Maybe(a - b);
}
Maybe multiply(const Dim& a, const Dim& b) {
  return is_extreme(a) || is_extreme(b) ? std::nullopt : Maybe(a * b);
}
Maybe smaller(const Dim& a, const Dim& b) { return min(a, b); }
Maybe larger(const Dim& a, const Dim& b) { return max(a, b); }

// ONNX truncates towards zero, dims divide towards minus infinity: the same for sizes. What may be
// below 0 is divided as a size on either side of it.
void divide(NodeFacts& facts) {
  combine_both(facts, [&](const Dim& a, const Dim& b) -> Maybe {
    if (is_extreme(a) || b.is(0) || !facts.is_size(b)) return std::nullopt;
    if (facts.is_size(a)) return floor_div(a, b);
    const Dim positive = floor_div(max(a, 0), b);
    if (facts.is_size(a + b - 1)) return positive;  // (n - 1) / 2 of no elements is 0
    return positive - floor_div(max(Dim(0) - a, 0), b);
  });
}

void modulo(NodeFacts& facts) {
  combine_both(facts, [&](const Dim& a, const Dim& b) -> Maybe {
    if (b.is(0) || !facts.is_size(a) || !facts.is_size(b)) return std::nullopt;
    return mod(a, b);
  });
}

Maybe equal(const Dim& a, const Dim& b) {
  if (a == b) return Dim(1);
  const Dim difference = a - b;
  const bool apart = difference.is_constant() || never_negative(difference - 1) ||
                     never_negative(Dim(-1) - difference);
  return apart ? Maybe(0) : std::nullopt;
}

Maybe less(const Dim& a, const Dim& b) {
  if (never_negative(b - a - 1)) return Dim(1);
  return never_negative(a - b) ? Maybe(0) : std::nullopt;
}

Maybe greater(const Dim& a, const Dim& b) { return less(b, a); }

Maybe inverse(const Maybe& truth) { return truth ? Maybe(Dim(1) - *truth) : std::nullopt; }
Maybe less_or_equal(const Dim& a, const Dim& b) { return inverse(less(b, a)); }
Maybe greater_or_equal(const Dim& a, const Dim& b) { return inverse(less(a, b)); }

void shape_of(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto rank = static_cast<int64_t>(shape->size());
  const auto clamped = [&](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + rank : index, 0, rank);
  };
  const int64_t start = clamped(facts.node().integer("start", 0));
  const int64_t end = std::max(clamped(facts.node().integer("end", rank)), start);
  set_if(facts, Elements(shape->begin() + start, shape->begin() + end));
}

void size_of(NodeFacts& facts) {
  if (facts.shape(0)) set_if(facts, Elements{element_count(*facts.shape(0))});
}

// Rank changes and casts between integers keep the elements.
void keep(NodeFacts& facts) {
  if (is_integer(facts.dtype(0)) || facts.dtype(0) == facts.output_dtype(0)) {
    set_if(facts, facts.elements(0));
  }
}

void cast(NodeFacts& facts) {
  if (is_floating(facts.dtype(0)) && is_integer(facts.output_dtype(0))) {
    return set_if(facts, truncated_elements(facts));
  }
  keep(facts);
}

void gather(NodeFacts& facts) {
  const auto data = facts.elements(0);
  const auto indices = facts.integers(1);
  if (!data || !indices || !facts.shape(0) || facts.shape(0)->size() != 1) return;
  Elements picked;
  for (int64_t index : *indices) {
    const auto at = normal_axis(index, data->size());
    if (!at) return;
    picked.push_back((*data)[*at]);
  }
  set_if(facts, std::move(picked));
}

void concat(NodeFacts& facts) {
  Elements all;
  for (size_t i = 0; i < facts.input_count(); ++i) {
    const auto part = facts.elements(i);
    if (!part || !facts.shape(i) || facts.shape(i)->size() != 1) return;
    all.insert(all.end(), part->begin(), part->end());
  }
  set_if(facts, std::move(all));
}

// `count` elements along each axis, `steps` apart, from `origin` on.
Elements walk(const Elements& data, const std::vector<int64_t>& counts,
              const std::vector<int64_t>& steps, int64_t origin) {
  std::vector<int64_t> places{origin};
  for (size_t axis = 0; axis < counts.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t place : places) {
      for (int64_t i = 0; i < counts[axis]; ++i) next.push_back(place + i * steps[axis]);
    }
    places = std::move(next);
  }
  Elements result;
  for (const int64_t place : places) result.push_back(data.at(static_cast<size_t>(place)));
  return result;
}

// Pads of the legacy exporter come as pairs, last axis first: [-1,2], reversed and transposed.
void slice(NodeFacts& facts) {
  const auto data = facts.elements(0);
  if (!data || !facts.shape(0) || !is_static(*facts.shape(0))) return;
  const auto region = slice_region(facts);
  if (!region || !is_static(region->starts) || !is_static(region->sizes)) return;
  const std::vector<int64_t> starts = static_dims(region->starts);
  std::vector<int64_t> strides = static_dims(contiguous_strides(*facts.shape(0)));
  int64_t origin = 0;
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    origin += starts[axis] * strides[axis];
    strides[axis] *= region->steps[axis];
  }
  set_if(facts, walk(*data, static_dims(region->sizes), strides, origin));
}

void transpose(NodeFacts& facts) {
  const auto data = facts.elements(0);
  const auto& shape = facts.shapes()[0];
  if (!data || !facts.shape(0) || !shape || !is_static(*shape)) return;
  const std::vector<int64_t> strides = static_dims(contiguous_strides(*facts.shape(0)));
  std::vector<int64_t> steps(strides.rbegin(), strides.rend());
  if (const std::vector<int64_t> perm = facts.node().integers("perm"); !perm.empty()) {
    for (size_t axis = 0; axis < perm.size(); ++axis) {
      steps[axis] = strides[*normal_axis(perm[axis], strides.size())];
    }
  }
  set_if(facts, walk(*data, static_dims(*shape), steps, 0));
}

void split(NodeFacts& facts) {
  const auto data = facts.elements(0);
  if (!data || !facts.shape(0) || facts.shape(0)->size() != 1) return;
  size_t from = 0;
  for (size_t i = 0; i < facts.node().outputs.size(); ++i) {
    const auto& shape = facts.shapes()[i];
    if (!shape || !is_static(*shape)) return;
    const auto count = static_cast<size_t>((*shape)[0].value());
    if (from + count > data->size() || !holds_elements(facts.output_dtype(i))) return;
    facts.set_elements(i, Elements(data->begin() + static_cast<std::ptrdiff_t>(from),
                                   data->begin() + static_cast<std::ptrdiff_t>(from + count)));
    from += count;
  }
}

void where(NodeFacts& facts) {
  const auto condition = facts.integers(0);
  const auto yes = facts.elements(1), no = facts.elements(2);
  if (!condition || !yes || !no) return;
  const size_t count = std::max({condition->size(), yes->size(), no->size()});
  const auto at = [&](const auto& list, size_t i) { return list[list.size() == 1 ? 0 : i]; };
  for (size_t size : {condition->size(), yes->size(), no->size()}) {
    if (size != count && size != 1) return;
  }
  Elements result;
  for (size_t i = 0; i < count; ++i) result.push_back(at(*condition, i) ? at(*yes, i) : at(*no, i));
  set_if(facts, std::move(result));
}

// Every element of the output's known, small size is the same one.
void fill(NodeFacts& facts, const Dim& element) {
  const auto& shape = facts.shapes()[0];
  if (!shape || !is_static(*shape)) return;
  const int64_t count = element_count(*shape).value();
  if (count <= static_cast<int64_t>(kMaxElements)) set_if(facts, Elements(count, element));
}

void expand(NodeFacts& facts) {
  const auto data = facts.elements(0);
  if (data && data->size() == 1) return fill(facts, data->front());
  const auto& shape = facts.shapes()[0];
  const bool unchanged = data && shape && facts.shape(0) && *shape == *facts.shape(0);
  if (unchanged) set_if(facts, data);
}

void constant_of_shape(NodeFacts& facts) {
  const ir::TensorPtr value = facts.node().has("value") ? facts.node().tensor("value") : nullptr;
  const auto element = value ? integer_elements(*value) : std::nullopt;
  if (element && element->size() == 1) fill(facts, element->front());
}

void tile(NodeFacts& facts) {
  const auto data = facts.elements(0);
  const auto repeats = facts.integers(1);
  if (!data || !repeats || repeats->size() != 1 || repeats->front() < 0) return;
  if (data->size() * static_cast<size_t>(repeats->front()) > kMaxElements) return;
  Elements result;
  for (int64_t i = 0; i < repeats->front(); ++i) {
    result.insert(result.end(), data->begin(), data->end());
  }
  set_if(facts, std::move(result));
}

void range(NodeFacts& facts) {
  const auto start = facts.elements(0), delta = facts.elements(2);
  const auto& shape = facts.shapes()[0];
  if (!start || !delta || !shape || shape->size() != 1 || !(*shape)[0].is_constant()) return;
  const int64_t count = (*shape)[0].value();
  if (count > static_cast<int64_t>(kMaxElements)) return;
  Elements result;
  for (int64_t i = 0; i < count; ++i) result.push_back(start->front() + delta->front() * i);
  set_if(facts, std::move(result));
}

// A new axis of `depth` in front of what is behind it; a negative index counts from the depth.
void one_hot(NodeFacts& facts) {
  const auto indices = facts.integers(0), depth = facts.integers(1);
  const auto values = facts.elements(2);
  const auto& shape = facts.shapes()[0];
  if (!indices || !depth || depth->size() != 1 || !values || values->size() != 2) return;
  if (!shape || !is_static(*shape)) return;
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  const int64_t count = element_count(*shape).value();
  if (!axis || count > static_cast<int64_t>(kMaxElements)) return;
  const int64_t inner =
      element_count(Shape(shape->begin() + static_cast<std::ptrdiff_t>(*axis) + 1, shape->end()))
          .value();
  Elements result;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t outer = i / (inner * depth->front()), place = i / inner % depth->front();
    const int64_t index = indices->at(static_cast<size_t>(outer * inner + i % inner));
    const bool is_on = index == place || index + depth->front() == place;
    result.push_back(values->at(is_on ? 1 : 0));
  }
  set_if(facts, std::move(result));
}

template <Maybe (*Combine)(const Dim&, const Dim&)>
void reduce(NodeFacts& facts) {
  const auto data = facts.elements(0);
  const auto& shape = facts.shapes()[0];
  if (!data || data->empty() || !shape || !element_count(*shape).is(1)) return;
  Maybe total = data->front();
  for (size_t i = 1; i < data->size() && total; ++i) total = Combine(*total, (*data)[i]);
  if (total) set_if(facts, Elements{*total});
}

void negate(NodeFacts& facts) {
  const auto data = facts.elements(0);
  if (data) set_if(facts, zip(Elements{0}, *data, subtract));
}

void absolute(NodeFacts& facts) {
  const auto data = facts.elements(0);
  const auto is_size = [&](const Dim& dim) { return facts.is_size(dim); };
  if (data && std::ranges::all_of(*data, is_size)) set_if(facts, data);
}

void logical_not(NodeFacts& facts) {
  const auto data = facts.integers(0);
  if (!data) return;
  Elements result;
  for (int64_t element : *data) result.emplace_back(element == 0);
  set_if(facts, std::move(result));
}

void shape_value(NodeFacts& facts) {
  Elements elements;
  for (const std::string& dim : facts.node().texts("dims")) elements.push_back(Dim::parse(dim));
  set_if(facts, std::move(elements));
}

void constant(NodeFacts& facts) {
  if (const auto value = facts.node().has("value") ? facts.node().tensor("value") : nullptr) {
    set_if(facts, integer_elements(*value));
  } else if (facts.node().has("value_ints")) {
    set_if(facts, make_shape(facts.node().integers("value_ints")));
  } else if (facts.node().has("value_int")) {
    set_if(facts, Elements{facts.node().integer("value_int", 0)});
  }
}

constexpr ShapeRule kRules[] = {
    {"Abs", absolute},
    {"Add", binary<add>},
    {"And", binary<multiply>},
    {"Cast", cast},
    {"Concat", concat},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"Div", divide},
    {"Equal", binary<equal>},
    {"Expand", expand},
    {"Flatten", keep},
    {"Gather", gather},
    {"Greater", binary<greater>},
    {"GreaterOrEqual", binary<greater_or_equal>},
    {"Identity", keep},
    {"Less", binary<less>},
    {"LessOrEqual", binary<less_or_equal>},
    {"Max", binary<larger>},
    {"Min", binary<smaller>},
    {"Mod", modulo},
    {"Mul", binary<multiply>},
    {"Neg", negate},
    {"Not", logical_not},
    {"OneHot", one_hot},
    {"Or", binary<larger>},
    {"Range", range},
    {"ReduceMax", reduce<larger>},
    {"ReduceMin", reduce<smaller>},
    {"ReduceProd", reduce<multiply>},
    {"ReduceSum", reduce<add>},
    {"Reshape", keep},
    {"Shape", shape_of},
    {"Size", size_of},
    {"Slice", slice},
    {"Split", split},
    {"Squeeze", keep},
    {"Sub", binary<subtract>},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Unsqueeze", keep},
    {"Where", where},
    {"tenon::ShapeValue", shape_value},
};

}  // namespace

std::span<const ShapeRule> element_rules() { return kRules; }

}  // namespace tenon
