#include "graph_partitioner/passes/attention_forms/rotary.h"

#include <algorithm>

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
  const auto times = [&](ValueId a, ValueId b) { return r.emit.binary("Mul", a, b); };
  const ValueId first_cos = times(first, cos), second_sin = times(second, sin);
  const ValueId real = r.emit.binary("Sub", first_cos, second_sin);
  const ValueId first_sin = times(first, sin), second_cos = times(second, cos);
  const ValueId imaginary = r.emit.binary("Add", first_sin, second_cos);
  return r.emit.reshape(concat(r, {real, imaginary}, axis), shape);
}

using Operands = RotaryCall (*)(const Rewrite& r, const ir::Node& node);

RotaryCall onnx_operands(const Rewrite&, const ir::Node& node) {
  return {node.input(0), node.input(1), node.input(2), node.input(3), node.integer("num_heads", 0)};
}

RotaryCall contrib_operands(const Rewrite& r, const ir::Node& node) {
  RotaryCall call{node.input(0), node.input(2), node.input(3), node.input(1),
                  node.integer("num_heads", 0)};
  const auto shape = r.shape(call.x), table = r.shape(call.cos);
  if (call.heads == 0 && shape && table && shape->back().is_constant() &&
      table->back().is_constant()) {
    call.heads = shape->back().value() / (2 * table->back().value());  // as wide as a whole head
  }
  return call;
}

struct RotaryOp {
  std::string_view name;
  Operands operands;
};
constexpr RotaryOp kOps[] = {
    {"RotaryEmbedding", onnx_operands},
    {"com.microsoft::RotaryEmbedding", contrib_operands},
};

bool tables_fit(const Rewrite& r, const RotaryCall& call) {
  const auto cos = r.shape(call.cos), sin = r.shape(call.sin);
  if (!cos || !sin || *cos != *sin || call.width % 2 != 0 || !cos->back().is(call.width / 2)) {
    return false;
  }
  if (call.positions == kNoValue) return cos->size() == 3;
  const auto positions = r.shape(call.positions);
  return positions && positions->size() <= 2 && cos->size() == 2;
}

bool expand(Rewrite& r) {
  const auto call = read_rotary(r, r.node());
  if (!call) return false;
  const Shape shape = *r.graph().value(call->x).shape;
  const bool heads_first = shape.size() == 4;
  Rotation rotation{call->cos, call->sin, call->width, call->interleaved};
  if (call->positions != kNoValue) {
    const ValueId rows = spread_positions(r, call->positions, shape[heads_first ? 2 : 1]);
    rotation = rotation_at(r, call->cos, call->sin, rows, call->width, call->interleaved);
  }
  ValueId x = call->x;
  if (!heads_first) {
    x = r.emit.reshape(x, {shape[0], shape[1], call->heads, floor_div(shape[2], call->heads)});
  }
  return r.replace(0, r.emit.reshape(rotate(r, x, rotation, heads_first), shape));
}

constexpr NamedRewrite kRules[] = {
    {"RotaryEmbedding", expand},
    {"com.microsoft::RotaryEmbedding", expand},
};

}  // namespace

std::optional<RotaryCall> read_rotary(const Rewrite& r, const ir::Node& node) {
  const auto op = std::ranges::find(kOps, node.op, &RotaryOp::name);
  if (op == std::end(kOps)) return std::nullopt;
  if (node.integer("is_packed_batching", 0) != 0 || node.number("scale", 1.0f) != 1.0f) {
    return std::nullopt;
  }
  RotaryCall call = op->operands(r, node);
  const auto shape = r.shape(call.x);
  if (!shape || (shape->size() != 3 && shape->size() != 4)) return std::nullopt;
  const bool heads_first = shape->size() == 4;
  if (!heads_first && call.heads <= 0) return std::nullopt;
  const Dim head_size = heads_first ? shape->back() : floor_div(shape->back(), call.heads);
  if (!head_size.is_constant()) return std::nullopt;
  const int64_t width = node.integer("rotary_embedding_dim", 0);
  call.width = width > 0 ? width : head_size.value();
  call.interleaved = node.integer("interleaved", 0) != 0;
  if (call.width > head_size.value() || !tables_fit(r, call)) return std::nullopt;
  return call;
}

ValueId spread_positions(Rewrite& r, ValueId positions, const Dim& sequence) {
  const Shape shape = *r.graph().value(positions).shape;
  if (shape.size() == 2) return positions;
  const ValueId first = r.emit.reshape(positions, {1, 1});
  const ValueId steps = r.emit.cast(r.emit.position({1, sequence}, 1), r.dtype(positions));
  return r.emit.binary("Add", first, steps);
}

Rotation rotation_at(Rewrite& r, ValueId cos_table, ValueId sin_table, ValueId positions,
                     int64_t width, bool interleaved) {
  const auto rows = [&](ValueId table) { return r.emit.gather(table, positions, 0, false); };
  return {rows(cos_table), rows(sin_table), width, interleaved};
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
