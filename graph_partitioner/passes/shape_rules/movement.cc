// Ops that rearrange, repeat or create elements.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "base/convert.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void transpose(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  std::vector<int64_t> perm = facts.node().integers("perm");
  if (perm.empty()) {
    for (size_t i = shape->size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  }
  if (perm.size() != shape->size()) return;
  Shape result;
  for (int64_t from : perm) {
    const auto axis = normal_axis(from, shape->size());
    if (!axis) return;
    result.push_back((*shape)[*axis]);
  }
  facts.set_shape(0, std::move(result));
}

// A view that a pass wrote has its shape already, and no target.
void reshape_as_given(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const Shape* given = facts.given_shape(0);
  if (shape && given) facts.require_equal(element_count(*shape), element_count(*given));
}

// A size that was computed and is 0 at Run would copy the input's there, which is right only where
// that is 0 as well.
void require_no_copy(NodeFacts& facts, size_t axis, const Dim& dim) {
  const Shape& shape = *facts.shape(0);
  if (axis < shape.size() && shape[axis] == dim) return;
  const Dim least = axis < shape.size() ? min(Dim(1), shape[axis]) : Dim(1);
  facts.require(least, ir::Relation::kAtMost, dim);
}

// 0 copies the input's dim, -1 takes what is left. Before opset 5 the target was an attribute.
void reshape(NodeFacts& facts) {
  const bool is_attribute = facts.node().has("shape");
  if (!is_attribute && !facts.has_input(1)) return reshape_as_given(facts);
  const auto target =
      is_attribute ? std::optional(make_shape(facts.node().integers("shape"))) : facts.elements(1);
  const Shape* shape = facts.shape(0);
  if (!target) return;
  const bool zero_copies = facts.node().integer("allowzero", 0) == 0;
  Shape result;
  std::optional<size_t> rest;
  for (size_t i = 0; i < target->size(); ++i) {
    const Dim& dim = (*target)[i];
    if (dim.is(-1)) {
      if (rest) return;
      rest = i;
      result.emplace_back(1);
    } else if (dim.is(0) && zero_copies) {
      if (!shape || i >= shape->size()) return;
      result.push_back((*shape)[i]);
    } else if (facts.is_size(dim)) {
      if (zero_copies && shape) require_no_copy(facts, i, dim);
      result.push_back(dim);
    } else {
      return;
    }
  }
  if (rest && !shape) return;
  if (rest) {
    const Dim others = element_count(result);
    if (others.is(0)) return;
    facts.require(others, ir::Relation::kDivides, element_count(*shape));
    result[*rest] = floor_div(element_count(*shape), others);
  } else if (shape) {
    facts.require_equal(element_count(*shape), element_count(result));
  }
  facts.set_shape(0, std::move(result));
}

void flatten(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  int64_t axis = facts.node().integer("axis", 1);
  if (axis < 0) axis += static_cast<int64_t>(shape->size());
  if (axis < 0 || axis > static_cast<int64_t>(shape->size())) return;
  const auto cut = shape->begin() + axis;
  facts.set_shape(
      0, {element_count(Shape(shape->begin(), cut)), element_count(Shape(cut, shape->end()))});
}

void squeeze(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  std::vector<int64_t> axes;
  if (facts.node().has("axes") || facts.has_input(1)) {
    const auto known = facts.integers_from("axes", 1);
    if (!known) return;
    axes = *known;
  } else {
    if (!is_static(*shape)) return;
    for (size_t i = 0; i < shape->size(); ++i) {
      if ((*shape)[i].is(1)) axes.push_back(static_cast<int64_t>(i));
    }
  }
  const auto gone = normal_axes(axes, shape->size());
  if (!gone) return;
  Shape result;
  for (size_t i = 0; i < shape->size(); ++i) {
    if (std::binary_search(gone->begin(), gone->end(), i)) {
      facts.require_equal((*shape)[i], 1);
    } else {
      result.push_back((*shape)[i]);
    }
  }
  facts.set_shape(0, std::move(result));
}

void unsqueeze(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const auto axes = facts.integers_from("axes", 1);
  if (!shape || !axes) return;
  const size_t rank = shape->size() + axes->size();
  const auto added = normal_axes(*axes, rank);
  if (!added || added->size() != axes->size()) return;
  Shape result;
  size_t from = 0;
  for (size_t i = 0; i < rank; ++i) {
    const bool is_new = std::binary_search(added->begin(), added->end(), i);
    result.push_back(is_new ? Dim(1) : (*shape)[from]);
    from += is_new ? 0 : 1;
  }
  facts.set_shape(0, std::move(result));
}

void expand(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!facts.has_input(1)) {  // a pass has written it
    if (facts.given_shape(0)) facts.require_stretches(0, *facts.given_shape(0));
    return;
  }
  const auto target = facts.elements(1);
  if (!shape || !target) return;
  facts.require_broadcast({*shape, *target});
  if (auto result = broadcast_all({*shape, *target})) facts.set_shape(0, *result);
}

void tile(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const auto repeats = facts.elements(1);
  if (!shape || !repeats || repeats->size() != shape->size()) return;
  Shape result;
  for (size_t i = 0; i < shape->size(); ++i) {
    facts.require(0, ir::Relation::kAtMost, (*repeats)[i]);
    result.push_back((*shape)[i] * (*repeats)[i]);
  }
  facts.set_shape(0, std::move(result));
}

// Of two sizes that are equal at Run: a number, or what takes fewer steps to compute. Behind
// max(0,s-1)+1 nobody would know s again.
bool is_plainer(const Dim& size, const Dim& than) {
  if (size.is_constant() || than.is_constant()) return size.is_constant();
  return size.text().size() < than.text().size();
}

void concat(NodeFacts& facts) {
  const Shape* first = facts.shape(0);
  if (!first) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), first->size());
  if (!axis) return;
  Shape result = *first;
  for (size_t i = 1; i < facts.input_count(); ++i) {
    const Shape* next = facts.shape(i);
    if (!next || next->size() != result.size()) return;
    for (size_t d = 0; d < result.size(); ++d) {
      if (d == *axis) {
        result[d] = result[d] + (*next)[d];
        continue;
      }
      facts.require_equal(result[d], (*next)[d]);
      if (is_plainer((*next)[d], result[d])) result[d] = (*next)[d];
    }
  }
  facts.set_shape(0, std::move(result));
}

void depth_to_space(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const int64_t block = facts.node().integer("blocksize", 0);
  if (!shape || shape->size() != 4 || block <= 0) return;
  facts.require(block * block, ir::Relation::kDivides, (*shape)[1]);
  facts.set_shape(0, {(*shape)[0], floor_div((*shape)[1], block * block), (*shape)[2] * block,
                      (*shape)[3] * block});
}

void space_to_depth(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const int64_t block = facts.node().integer("blocksize", 0);
  if (!shape || shape->size() != 4 || block <= 0) return;
  for (const size_t axis : {2, 3}) facts.require(block, ir::Relation::kDivides, (*shape)[axis]);
  facts.set_shape(0, {(*shape)[0], (*shape)[1] * (block * block), floor_div((*shape)[2], block),
                      floor_div((*shape)[3], block)});
}

void block_expand(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), shape->size());
  const int64_t block = facts.node().integer("block", 1);
  if (!axis || block <= 0) return;
  if (const Shape* given = facts.given_shape(0)) {
    if (given->size() != shape->size()) return facts.contradict("it changes the rank");
    return facts.require_equal((*shape)[*axis], ceil_div((*given)[*axis], block));
  }
  Shape result = *shape;
  result[*axis] = result[*axis] * block;
  facts.set_shape(0, std::move(result));
}

void shape_of(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto rank = static_cast<int64_t>(shape->size());
  const auto clamped = [&](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + rank : index, 0, rank);
  };
  const int64_t start = clamped(facts.node().integer("start", 0));
  const int64_t end = clamped(facts.node().integer("end", rank));
  facts.set_shape(0, {std::max<int64_t>(end - start, 0)});
}

void scalar(NodeFacts& facts) { facts.set_shape(0, {}); }

void constant_of_shape(NodeFacts& facts) {
  const auto target = facts.elements(0);
  const auto is_size = [&](const Dim& dim) { return facts.is_size(dim); };
  if (target && std::ranges::all_of(*target, is_size)) facts.set_shape(0, *target);
}

void constant(NodeFacts& facts) {
  const ir::Node& node = facts.node();
  const auto length = [](const auto& list) { return Shape{static_cast<int64_t>(list.size())}; };
  if (auto tensor = node.has("value") ? node.tensor("value") : nullptr) {
    facts.set_shape(0, make_shape(tensor->dims));
  } else if (node.has("value_ints")) {
    facts.set_shape(0, length(node.integers("value_ints")));
  } else if (node.has("value_floats")) {
    facts.set_shape(0, length(node.numbers("value_floats")));
  } else if (node.has("value_int") || node.has("value_float")) {
    facts.set_shape(0, {});
  }
}

void range(NodeFacts& facts) {
  const auto start = facts.whole_number(0), limit = facts.whole_number(1);
  const auto step = facts.whole_number(2);
  if (start && limit && step) {
    // The smallest integer has no positive counterpart.
    if (!step->is_constant() || step->is(0) || step->is(std::numeric_limits<int64_t>::min())) {
      return;
    }
    const Dim span = step->value() > 0 ? *limit - *start : *start - *limit;
    return facts.set_shape(0, {max(ceil_div(span, std::abs(step->value())), 0)});
  }
  const auto first = facts.constant(0), last = facts.constant(1), by = facts.constant(2);
  if (!first || !last || !by || first->elements() != 1 || last->elements() != 1 ||
      by->elements() != 1) {
    return;
  }
  const double stride = load_element(by->dtype, by->data, 0);
  const double span =
      load_element(last->dtype, last->data, 0) - load_element(first->dtype, first->data, 0);
  const double count = std::ceil(span / stride);
  if (count < 1e12) facts.set_shape(0, {static_cast<int64_t>(std::max(count, 0.0))});
}

// A size times a factor, rounded down, where that is an expression: by a whole number, by a
// fraction of a power of two (0.5, 1.25), or of a number.
std::optional<Dim> scaled_size(NodeFacts& facts, const Dim& dim, double factor) {
  if (dim.is_constant()) {
    return static_cast<int64_t>(std::floor(static_cast<double>(dim.value()) * factor));
  }
  constexpr int64_t kParts = 256;
  const double parts = factor * kParts;
  if (!(factor > 0) || factor >= 1e6 || parts != std::floor(parts)) return std::nullopt;
  const Dim product = dim * static_cast<int64_t>(parts);
  if (!mod(product, kParts).is(0)) {
    // The runtime multiplies in f32, which is exact up to here.
    facts.require(product, ir::Relation::kAtMost, int64_t{1} << 24);
  }
  return floor_div(product, kParts);
}

// What only a Run can tell, under the name that an import gives to a dim without one.
Dim untold_size(const NodeFacts& facts, size_t axis) {
  return Dim::symbol(fmt::format("{}:{}", facts.output_name(0), axis));
}

// The axes that are resized, in the order in which sizes and scales name them.
std::optional<std::vector<size_t>> resized_axes(const NodeFacts& facts, size_t rank) {
  std::vector<size_t> axes(rank);
  std::iota(axes.begin(), axes.end(), size_t{0});
  if (!facts.node().has("axes")) return axes;
  axes.clear();
  for (const int64_t given : facts.node().integers("axes")) {
    const auto axis = normal_axis(given, rank);
    if (!axis) return std::nullopt;
    axes.push_back(*axis);
  }
  return axes;
}

// Sizes from input `sizes`, or scales from input `scales`. The rank is the input's in any case, and
// so is the size of each axis that is not named.
void resize_by(NodeFacts& facts, size_t scales, size_t sizes) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto axes = resized_axes(facts, shape->size());
  if (!axes) return;
  const bool stretches = facts.node().text("keep_aspect_ratio_policy", "stretch") == "stretch";
  const bool crops =
      facts.node().text("coordinate_transformation_mode", "") == "tf_crop_and_resize";
  const auto target = facts.elements(sizes);
  const auto factors = facts.constant(scales);
  const bool has_target = stretches && target && target->size() == axes->size();
  const bool has_factors =
      !crops && factors && factors->elements() == static_cast<int64_t>(axes->size());
  Shape result = *shape;
  for (size_t i = 0; i < axes->size(); ++i) {
    const size_t axis = (*axes)[i];
    std::optional<Dim> size;
    if (has_target) {
      size = (*target)[i];
      facts.require(1, ir::Relation::kAtMost, *size);
    } else if (has_factors) {
      const auto index = static_cast<int64_t>(i);
      size = scaled_size(facts, (*shape)[axis], load_element(factors->dtype, factors->data, index));
    }
    result[axis] = size ? *size : untold_size(facts, axis);
  }
  // The runtime refuses a size of 0, before or behind.
  if (has_target) {
    for (const Dim& dim : *shape) facts.require(1, ir::Relation::kAtMost, dim);
  }
  facts.set_shape(0, std::move(result));
}

void resize(NodeFacts& facts) {
  if (facts.node().since_version == 10) return resize_by(facts, 1, SIZE_MAX);
  resize_by(facts, 2, 3);
}

void upsample(NodeFacts& facts) { resize_by(facts, 1, SIZE_MAX); }

constexpr ShapeRule kRules[] = {
    {"Concat", concat},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"DepthToSpace", depth_to_space},
    {"Expand", expand},
    {"Flatten", flatten},
    {"Range", range},
    {"Reshape", reshape},
    {"Resize", resize},
    {"Shape", shape_of},
    {"Size", scalar},
    {"SpaceToDepth", space_to_depth},
    {"Squeeze", squeeze},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Unsqueeze", unsqueeze},
    {"Upsample", upsample},
    {"tenon::BlockExpand", block_expand},
    {"tenon::DimValue", scalar},
};

}  // namespace

std::span<const ShapeRule> movement_shape_rules() { return kRules; }

}  // namespace tenon
