// Ops that pick elements: slices, splits, gathers, padding.
#include <algorithm>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void slice(NodeFacts& facts) {
  if (auto region = slice_region(facts)) facts.set_shape(0, std::move(region->sizes));
}

void split(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), shape->size());
  if (!axis) return;
  const size_t count = facts.node().outputs.size();
  if (facts.node().integer("num_outputs", static_cast<int64_t>(count)) !=
      static_cast<int64_t>(count)) {
    return facts.contradict("num_outputs is not the number of its outputs");
  }
  std::vector<Dim> sizes;
  if (facts.node().has("split")) {
    sizes = make_shape(facts.node().integers("split"));
  } else if (facts.has_input(1)) {
    const auto known = facts.elements(1);
    if (!known) return;
    sizes = *known;
  } else {
    const Dim& dim = (*shape)[*axis];
    const int version = facts.node().since_version;
    if (version > 0 && version < 18) {  // the last one may be smaller from 18 on
      facts.require(static_cast<int64_t>(count), ir::Relation::kDivides, dim);
    }
    const Dim chunk = ceil_div(dim, static_cast<int64_t>(count));
    sizes.assign(count, chunk);
    sizes.back() = dim - chunk * static_cast<int64_t>(count - 1);
    if (version >= 18) facts.require(1, ir::Relation::kAtMost, sizes.back());
  }
  if (sizes.size() != count) return;
  Dim total = 0;
  for (const Dim& size : sizes) total = total + size;
  facts.require_equal(total, (*shape)[*axis]);
  for (size_t i = 0; i < count; ++i) {
    Shape result = *shape;
    result[*axis] = sizes[i];
    facts.set_shape(i, std::move(result));
  }
}

void gather(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), data->size());
  if (!axis) return;
  Shape result(data->begin(), data->begin() + static_cast<std::ptrdiff_t>(*axis));
  result.insert(result.end(), indices->begin(), indices->end());
  result.insert(result.end(), data->begin() + static_cast<std::ptrdiff_t>(*axis) + 1, data->end());
  facts.set_shape(0, std::move(result));
}

void pick(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), data->size());
  if (!axis) return;
  Shape rest = *data;
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(*axis));
  facts.require_broadcast({rest, *indices});
  if (auto result = broadcast_shapes(rest, *indices)) facts.set_shape(0, std::move(*result));
}

void gather_elements(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices) return;
  require_inside(facts, *indices, *data, facts.node().integer("axis", 0));
  facts.set_shape(0, *indices);
}

void gather_nd(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || !indices || indices->empty() || !indices->back().is_constant()) return;
  const int64_t skipped = facts.node().integer("batch_dims", 0) + indices->back().value();
  if (skipped < 0 || skipped > static_cast<int64_t>(data->size())) return;
  const auto batch = static_cast<size_t>(facts.node().integer("batch_dims", 0));
  if (batch >= indices->size() || batch > data->size()) return;
  for (size_t i = 0; i < batch; ++i) facts.require_equal((*indices)[i], (*data)[i]);
  Shape result(indices->begin(), indices->end() - 1);
  result.insert(result.end(), data->begin() + skipped, data->end());
  facts.set_shape(0, std::move(result));
}

void pad(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return;
  const auto pads = facts.node().has("pads")
                        ? std::optional(make_shape(facts.node().integers("pads")))
                        : facts.elements(1);
  if (!pads) return;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < shape->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (facts.has_input(3)) {
    const auto known = facts.integers(3);
    if (!known) return;
    axes = *known;
  }
  if (pads->size() != 2 * axes.size()) return;
  Shape result = *shape;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = normal_axis(axes[i], shape->size());
    if (!axis) return;
    result[*axis] = result[*axis] + (*pads)[i] + (*pads)[axes.size() + i];
  }
  facts.set_shape(0, std::move(result));
}

void top_k(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const auto count = facts.node().has("k")
                         ? std::optional(std::vector<Dim>{facts.node().integer("k", 0)})
                         : facts.elements(1);
  if (!shape || !count || count->size() != 1) return;
  const auto axis = normal_axis(facts.node().integer("axis", -1), shape->size());
  if (!axis) return;
  Shape result = *shape;
  result[*axis] = count->front();
  facts.set_shape(0, result);
  facts.set_shape(1, result);
}

void one_hot(NodeFacts& facts) {
  const Shape* indices = facts.shape(0);
  const auto depth = facts.elements(1);
  if (!indices || !depth || depth->size() != 1) return;
  const auto axis = normal_axis(facts.node().integer("axis", -1), indices->size() + 1);
  if (!axis) return;
  Shape result = *indices;
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(*axis), depth->front());
  facts.require_elements(1, 1);
  facts.require_elements(2, 2);
  facts.set_shape(0, std::move(result));
}

// Packed uint8 data holds two 4-bit elements along the quantised (last) axis.
void gather_block_quantized(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* indices = facts.shape(1);
  if (!data || data->empty() || !indices) return;
  const auto axis = normal_axis(facts.node().integer("gather_axis", 0), data->size());
  if (!axis) return;
  Shape unpacked = *data;
  const int64_t bits = facts.node().integer("bits", 4);
  if (facts.dtype(0) == DType::kU8 && bits > 0 && bits < 8) {
    unpacked.back() = unpacked.back() * (8 / bits);
  }
  const auto blocks = normal_axis(facts.node().integer("quantize_axis", 1), data->size());
  if (const int64_t block = facts.node().integer("block_size", 128); blocks && block > 0) {
    Shape scales = unpacked;
    scales[*blocks] = ceil_div(scales[*blocks], block);
    facts.require_shape(2, scales);
  }
  Shape result(unpacked.begin(), unpacked.begin() + static_cast<std::ptrdiff_t>(*axis));
  result.insert(result.end(), indices->begin(), indices->end());
  result.insert(result.end(), unpacked.begin() + static_cast<std::ptrdiff_t>(*axis) + 1,
                unpacked.end());
  facts.set_shape(0, std::move(result));
}

constexpr ShapeRule kRules[] = {
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"OneHot", one_hot},
    {"Pad", pad},
    {"Slice", slice},
    {ir::kPick, pick},
    {"Split", split},
    {"TopK", top_k},
    {"com.microsoft::GatherBlockQuantized", gather_block_quantized},
};

}  // namespace

void require_inside(NodeFacts& facts, const Shape& indices, const Shape& data, int64_t axis) {
  const auto normal = normal_axis(axis, data.size());
  if (!normal || indices.size() != data.size())
    return facts.contradict("indices and data differ in rank");
  for (size_t i = 0; i < data.size(); ++i) {
    if (i != *normal) facts.require(indices[i], ir::Relation::kAtMost, data[i]);
  }
}

std::optional<SliceRegion> slice_region(const NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape) return std::nullopt;
  const bool attributes = facts.node().has("starts");
  const auto list = [&](std::string_view name, size_t input) {
    return attributes ? std::optional(make_shape(facts.node().integers(name)))
                      : facts.elements(input);
  };
  const auto starts = list("starts", 1), ends = list("ends", 2);
  if (!starts || !ends || starts->size() != ends->size()) return std::nullopt;
  std::vector<int64_t> axes, steps(starts->size(), 1);
  for (size_t i = 0; i < starts->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (facts.node().has("axes") || facts.has_input(3)) {
    const auto known = facts.integers_from("axes", 3);
    if (!known || known->size() != starts->size()) return std::nullopt;
    axes = *known;
  }
  if (facts.has_input(4)) {
    const auto known = facts.integers(4);
    if (!known || known->size() != starts->size()) return std::nullopt;
    steps = *known;
  }
  const IsSize is_size = [&](const Dim& dim) { return facts.is_size(dim); };
  SliceRegion region{Shape(shape->size(), 0), *shape, std::vector<int64_t>(shape->size(), 1)};
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = normal_axis(axes[i], shape->size());
    if (!axis) return std::nullopt;
    const auto extent = slice_extent((*starts)[i], (*ends)[i], steps[i], (*shape)[*axis], is_size);
    if (!extent) return std::nullopt;
    region.starts[*axis] = extent->start;
    region.sizes[*axis] = extent->size;
    region.steps[*axis] = steps[i];
  }
  return region;
}

std::span<const ShapeRule> slicing_shape_rules() { return kRules; }

}  // namespace tenon
