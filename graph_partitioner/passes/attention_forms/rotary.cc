#include "graph_partitioner/passes/attention_forms/rotary.h"

#include "graph_partitioner/passes/attention_forms/forms.h"

namespace tenon::attention_forms {
namespace {

using ir::kNoValue;
using ir::ValueId;

// [B, S, half] as it broadcasts with a head's half: [B, S, 1, half] or [B, 1, S, half]; interleaved
// pairs add a last dim of 1.
ValueId aligned(Rewrite& r, ValueId angles, const Rotation& rotation, bool heads_first) {
  const Shape shape = *r.graph().value(angles).shape;
  Shape to =
      heads_first ? Shape{shape[0], 1, shape[1], shape[2]} : Shape{shape[0], shape[1], 1, shape[2]};
  if (rotation.interleaved) to.push_back(1);
  return r.emit.reshape(angles, std::move(to));
}

// The rotated part of x, of the same shape.
ValueId rotated(Rewrite& r, ValueId x, const Rotation& rotation, bool heads_first) {
  const Shape shape = *r.graph().value(x).shape;
  const int64_t half = rotation.width / 2;
  Shape pairs = shape;
  if (rotation.interleaved) {
    pairs.back() = half;
    pairs.push_back(2);
  }
  const ValueId split = r.emit.reshape(x, pairs);
  const int64_t axis = rotation.interleaved ? 4 : 3;
  const int64_t part = rotation.interleaved ? 1 : half;
  const ValueId first = slice_axis(r, split, axis, 0, part);
  const ValueId second = slice_axis(r, split, axis, part, part);
  const ValueId cos = aligned(r, rotation.cos, rotation, heads_first);
  const ValueId sin = aligned(r, rotation.sin, rotation, heads_first);
  const ValueId real =
      r.emit.binary("Sub", r.emit.binary("Mul", first, cos), r.emit.binary("Mul", second, sin));
  const ValueId imaginary =
      r.emit.binary("Add", r.emit.binary("Mul", first, sin), r.emit.binary("Mul", second, cos));
  return r.emit.reshape(concat(r, {real, imaginary}, axis), shape);
}

struct Arguments {
  ValueId x = kNoValue, cos = kNoValue, sin = kNoValue, positions = kNoValue;
};

// Positions [B or 1, S]; one number is the first of S positions.
ValueId spread_positions(Rewrite& r, ValueId positions, const Dim& sequence) {
  const Shape shape = *r.graph().value(positions).shape;
  if (shape.size() == 2) return positions;
  const ValueId first = r.emit.reshape(positions, {1, 1});
  const ValueId steps = r.emit.cast(r.emit.position({1, sequence}, 1), r.dtype(positions));
  return r.emit.binary("Add", first, steps);
}

std::optional<Rotation> rotation_of(Rewrite& r, const Arguments& given, int64_t width,
                                    const Dim& sequence) {
  const auto cos = r.shape(given.cos), sin = r.shape(given.sin);
  if (!cos || !sin || *cos != *sin || width % 2 != 0 || !cos->back().is(width / 2)) {
    return std::nullopt;
  }
  const bool interleaved = r.node().integer("interleaved", 0) != 0;
  if (given.positions == kNoValue) {
    if (cos->size() != 3) return std::nullopt;
    return Rotation{given.cos, given.sin, width, interleaved};
  }
  const auto positions = r.shape(given.positions);
  if (!positions || positions->size() > 2 || cos->size() != 2) return std::nullopt;
  return rotation_at(r, given.cos, given.sin, spread_positions(r, given.positions, sequence), width,
                     interleaved);
}

bool expand(Rewrite& r, const Arguments& given, int64_t heads) {
  const auto shape = r.shape(given.x);
  if (!shape || (shape->size() != 3 && shape->size() != 4)) return false;
  const bool heads_first = shape->size() == 4;
  if (!heads_first && heads <= 0) return false;
  const Dim head_size = heads_first ? shape->back() : floor_div(shape->back(), heads);
  if (!head_size.is_constant()) return false;
  const int64_t given_width = r.node().integer("rotary_embedding_dim", 0);
  const int64_t width = given_width > 0 ? given_width : head_size.value();
  const auto rotation = rotation_of(r, given, width, (*shape)[heads_first ? 2 : 1]);
  if (!rotation || width > head_size.value()) return false;
  ValueId x = given.x;
  if (!heads_first) x = r.emit.reshape(x, {(*shape)[0], (*shape)[1], heads, head_size});
  const ValueId y = rotate(r, x, *rotation, heads_first);
  return r.replace(0, r.emit.reshape(y, *shape));
}

bool onnx_rotary(Rewrite& r) {
  return expand(r, {r.input(0), r.input(1), r.input(2), r.input(3)},
                r.node().integer("num_heads", 0));
}

bool contrib_rotary(Rewrite& r) {
  const ir::Node& node = r.node();
  if (node.integer("is_packed_batching", 0) != 0 || node.number("scale", 1.0f) != 1.0f)
    return false;
  int64_t heads = node.integer("num_heads", 0);
  const auto shape = r.shape(r.input(0)), table = r.shape(r.input(2));
  if (heads == 0 && shape && table && shape->back().is_constant() && table->back().is_constant()) {
    heads = shape->back().value() / (2 * table->back().value());  // the table is a whole head wide
  }
  return expand(r, {r.input(0), r.input(2), r.input(3), r.input(1)}, heads);
}

constexpr NamedRewrite kRules[] = {
    {"RotaryEmbedding", onnx_rotary},
    {"com.microsoft::RotaryEmbedding", contrib_rotary},
};

}  // namespace

Rotation rotation_at(Rewrite& r, ValueId cos_table, ValueId sin_table, ValueId positions,
                     int64_t width, bool interleaved) {
  return {r.emit.gather(cos_table, positions, 0), r.emit.gather(sin_table, positions, 0), width,
          interleaved};
}

ValueId rotate(Rewrite& r, ValueId x, const Rotation& rotation, bool heads_first) {
  const Shape shape = *r.graph().value(x).shape;
  const int64_t size = shape.back().value();
  if (size == rotation.width) return rotated(r, x, rotation, heads_first);
  const ValueId turned = rotated(r, slice_axis(r, x, 3, 0, rotation.width), rotation, heads_first);
  const ValueId rest = slice_axis(r, x, 3, rotation.width, size - rotation.width);
  return concat(r, {turned, rest}, 3);
}

std::span<const NamedRewrite> rotary_forms() { return kRules; }

}  // namespace tenon::attention_forms
