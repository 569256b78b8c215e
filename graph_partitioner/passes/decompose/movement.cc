// Ops that only move elements, as index maps and views.
#include <array>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

// x [d0, d1] tiled [r0, r1] times: [1, d0, 1, d1] expanded to [r0, d0, r1, d1], seen as 2-D again.
Results tile(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  const auto repeats = emit.known_elements(node.input(1));
  if (!shape || !repeats || repeats->size() != shape->size()) return {};
  Shape split, expanded, merged;
  for (size_t axis = 0; axis < shape->size(); ++axis) {
    const Dim& repeat = (*repeats)[axis];
    if (!repeat.is(1)) {
      split.emplace_back(1);
      expanded.push_back(repeat);
    }
    split.push_back((*shape)[axis]);
    expanded.push_back((*shape)[axis]);
    merged.push_back(repeat * (*shape)[axis]);
  }
  return {emit.reshape(emit.expand(emit.reshape(node.input(0), split), expanded), merged)};
}

struct Pads {
  std::vector<Dim> begin, end;
  bool known = false;
};

Pads read_pads(Emitter& emit, const Node& node, size_t rank) {
  Pads pads{std::vector<Dim>(rank, 0), std::vector<Dim>(rank, 0), false};
  auto given = emit.known_elements(node.input(1));
  std::vector<int64_t> axes = axes_between(0, static_cast<int64_t>(rank));
  if (node.input(3) != kNoValue) {
    const auto named = emit.known_elements(node.input(3));
    if (!named) return pads;
    axes.clear();
    for (const Dim& axis : *named) {
      if (!axis.is_constant()) return pads;
      axes.push_back(axis.value() < 0 ? axis.value() + static_cast<int64_t>(rank) : axis.value());
    }
  }
  if (!given || given->size() != 2 * axes.size()) return pads;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(rank)) return pads;
    pads.begin[axes[i]] = (*given)[i];
    pads.end[axes[i]] = (*given)[axes.size() + i];
  }
  pads.known = true;
  return pads;
}

// Which element along an axis of `size` stands at each place of the padded axis.
ValueId mirrored_indices(Emitter& emit, const std::string& mode, const Dim& begin, const Dim& size,
                         const Dim& padded) {
  ValueId index = emit.position({padded}, 0);
  index = emit.binary("Sub", index, emit.dim_value(begin, DType::kI64));
  // Mod has the sign of the divisor: any number of turns, either way.
  if (mode == "wrap") return emit.binary("Mod", index, emit.dim_value(size, DType::kI64));
  const ValueId last = emit.dim_value(size - Dim(1), DType::kI64);
  if (mode == "edge") {
    return emit.binary("Min", emit.binary("Max", index, 0.0), last);
  }
  // reflect: |i| on the left, last - |last - i| on the right. What lies beyond the axis's other
  // end, outside [-last, 2 * last], has no element: the index is the axis's size, which fails the
  // Run.
  const ValueId twice = emit.binary("Sub", emit.binary("Add", index, index), last);
  const ValueId is_beyond = emit.compare("Greater", emit.unary("Abs", twice),
                                         emit.dim_value(3 * (size - Dim(1)), DType::kI64));
  index = emit.unary("Abs", index);
  const ValueId from_last = emit.unary("Abs", emit.binary("Sub", last, index));
  return emit.where(is_beyond, emit.dim_value(size, DType::kI64),
                    emit.binary("Sub", last, from_last));
}

// Negative pads cut elements off; what is mirrored is the rest.
ValueId without_negative_pads(Emitter& emit, ValueId x, const Pads& pads) {
  const Shape whole = *emit.shape(x);
  Shape kept = whole;
  std::vector<Dim> starts;
  for (size_t axis = 0; axis < kept.size(); ++axis) {
    starts.push_back(max(Dim(0) - pads.begin[axis], 0));
    const Dim cut = starts[axis] + max(Dim(0) - pads.end[axis], 0);
    if (!cut.is(0)) kept[axis] = max(kept[axis] - cut, 0);
  }
  if (kept == whole) return x;
  const std::vector<int64_t> steps(kept.size(), 1);
  return emit.slice(x, std::move(starts), steps, std::move(kept));
}

Results pad(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  if (!shape) return {};
  const Pads pads = read_pads(emit, node, shape->size());
  if (!pads.known) return {};
  const std::string mode = node.text("mode", "constant");
  Shape padded = *shape;
  for (size_t axis = 0; axis < padded.size(); ++axis) {
    padded[axis] = padded[axis] + pads.begin[axis] + pads.end[axis];
  }
  if (mode == "constant") {
    const bool zero = node.input(2) == kNoValue;
    const ValueId fill =
        zero ? emit.scalar_like(node.input(0), 0.0) : emit.reshape(node.input(2), {});
    return {emit.pad(node.input(0), pads.begin, fill, padded)};
  }
  if (mode != "edge" && mode != "reflect" && mode != "wrap") return {};
  const ValueId kept = without_negative_pads(emit, node.input(0), pads);
  const Shape from = *emit.shape(kept);
  ValueId x = kept;
  for (size_t axis = 0; axis < padded.size(); ++axis) {
    if (padded[axis] == from[axis]) continue;
    const Dim begin = max(pads.begin[axis], 0);
    const ValueId indices = mirrored_indices(emit, mode, begin, from[axis], padded[axis]);
    x = emit.gather(x, indices, static_cast<int64_t>(axis));
  }
  return {x};
}

// Blocks of channels and squares of pixels change places: six axes, permuted.
Results depth_to_space(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  const int64_t size = node.integer("blocksize", 0);
  if (!shape || shape->size() != 4 || size < 1) return {};
  const Dim n = (*shape)[0], h = (*shape)[2], w = (*shape)[3];
  const Dim c = floor_div((*shape)[1], Dim(size * size));
  const bool depth_first = node.text("mode", "DCR") == "DCR";
  const Shape split = depth_first ? Shape{n, size, size, c, h, w} : Shape{n, c, size, size, h, w};
  const std::vector<int64_t> perm =
      depth_first ? std::vector<int64_t>{0, 3, 4, 1, 5, 2} : std::vector<int64_t>{0, 1, 4, 2, 5, 3};
  const ValueId moved = emit.transpose(emit.reshape(node.input(0), split), perm);
  return {emit.reshape(moved, {n, c, h * size, w * size})};
}

Results space_to_depth(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.input(0));
  const int64_t size = node.integer("blocksize", 0);
  if (!shape || shape->size() != 4 || size < 1) return {};
  const Dim n = (*shape)[0], c = (*shape)[1];
  const Dim h = floor_div((*shape)[2], Dim(size)), w = floor_div((*shape)[3], Dim(size));
  const ValueId split = emit.reshape(node.input(0), {n, c, h, size, w, size});
  const ValueId moved = emit.transpose(split, {0, 3, 5, 1, 2, 4});
  return {emit.reshape(moved, {n, c * (size * size), h, w})};
}

// Shape arithmetic has already given the output its shape.
Results constant_of_shape(Emitter& emit, const Node& node) {
  const auto shape = emit.shape(node.output(0));
  if (!shape) return {};
  const ir::TensorPtr given = node.tensor("value");
  const DType type = emit.dtype(node.output(0));
  if (!given || given->elements() != 1 || given->dtype != type) {
    if (given) return {};
    return {emit.expand(emit.scalar(type, 0.0), *shape)};
  }
  return {emit.expand(emit.constant(given, {}), *shape)};
}

Results global_pool(Emitter& emit, const Node& node, std::string_view reduction) {
  const auto shape = emit.shape(node.input(0));
  if (!shape || shape->size() < 3) return {};
  const auto axes = axes_between(2, static_cast<int64_t>(shape->size()));
  return {emit.reduce(reduction, node.input(0), axes)};
}

Results global_average_pool(Emitter& emit, const Node& node) {
  return global_pool(emit, node, "ReduceMean");
}

Results global_max_pool(Emitter& emit, const Node& node) {
  return global_pool(emit, node, "ReduceMax");
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Tile", tile},
    {"Pad", pad},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"ConstantOfShape", constant_of_shape},
    {"GlobalAveragePool", global_average_pool},
    {"GlobalMaxPool", global_max_pool},
});

}  // namespace

std::span<const NamedRule> movement_rules() { return kRules; }

}  // namespace tenon::decomposition
