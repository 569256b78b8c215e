#include "graph_partitioner/passes/attention_forms/forms.h"

#include <limits>

namespace tenon::attention_forms {

using ir::kNoValue;
using ir::ValueId;

void write(Rewrite& r, const ir::Attention& attention, std::vector<ValueId> outputs) {
  while (outputs.size() > 1 && outputs.back() == kNoValue) outputs.pop_back();
  ir::Node& node = r.graph().node(r.id());
  node.attributes.clear();
  node.outputs = std::move(outputs);
  attention.write_to(node);
}

ValueId add_masks(Rewrite& r, ValueId a, ValueId b) {
  if (a == kNoValue || b == kNoValue) return a == kNoValue ? b : a;
  return r.emit.binary("Add", a, b);
}

ValueId additive_mask(Rewrite& r, ValueId keep, DType dtype, double fill) {
  const ValueId kept = r.emit.scalar(dtype, 0.0), masked = r.emit.scalar(dtype, fill);
  return r.emit.where(keep, kept, masked);
}

ValueId pad_mask(Rewrite& r, ValueId mask, const Dim& keys) {
  Shape shape = *r.graph().value(mask).shape;
  if (shape.back() == keys) return mask;
  const DType dtype = r.dtype(mask);
  const bool is_additive = is_floating(dtype);
  const double hidden = is_additive ? -std::numeric_limits<double>::infinity() : 0.0;
  const std::vector<Dim> begins(shape.size(), 0);
  shape.back() = keys;
  return r.emit.pad(mask, begins, r.emit.scalar(dtype, hidden), std::move(shape));
}

ValueId slice_axis(Rewrite& r, ValueId x, int64_t axis, const Dim& start, const Dim& size) {
  Shape shape = *r.graph().value(x).shape;
  std::vector<Dim> starts(shape.size(), 0);
  const std::vector<int64_t> steps(shape.size(), 1);
  starts[axis] = start;
  shape[axis] = size;
  return r.emit.slice(x, std::move(starts), steps, std::move(shape));
}

ValueId concat(Rewrite& r, const std::vector<ValueId>& parts, int64_t axis) {
  Shape shape = *r.graph().value(parts.front()).shape;
  shape[axis] = 0;
  for (const ValueId part : parts) shape[axis] = shape[axis] + (*r.graph().value(part).shape)[axis];
  ir::Node node;
  node.op = "Concat";
  node.inputs = parts;
  node.attributes["axis"] = axis;
  return r.emit.emit(std::move(node), r.dtype(parts.front()), std::move(shape));
}

ValueId split_heads(Rewrite& r, ValueId x, int64_t heads) {
  const Shape shape = *r.graph().value(x).shape;
  const Shape split = {shape[0], shape[1], heads, floor_div(shape[2], heads)};
  return r.emit.transpose(r.emit.reshape(x, split), {0, 2, 1, 3});
}

void take_output_transpose(Rewrite& r, ir::Attention& attention) {
  ir::Graph& graph = r.graph();
  const ValueId y = r.output();
  if (attention.y_layout != "bhsd" || !graph.has_one_use(y)) return;
  const ir::NodeId reader = graph.consumers(y).front();
  const ir::Node& node = graph.node(reader);
  if (!node.is("Transpose") || node.integers("perm") != std::vector<int64_t>{0, 2, 1, 3}) return;
  const ValueId turned = node.output(0);
  r.absorb(node.sources);
  graph.value(y).shape = graph.value(turned).shape;
  graph.replace_uses(turned, y);
  graph.remove_node(reader);
  attention.y_layout = "bshd";
}

ValueId normed_heads(Rewrite& r, ValueId x, ValueId weight, float epsilon) {
  if (weight == kNoValue) return x;
  ir::Node norm;
  norm.op = "RMSNormalization";
  norm.inputs = {x, weight};
  norm.attributes["axis"] = int64_t{-1};
  norm.attributes["epsilon"] = epsilon;
  return r.emit.emit(std::move(norm), r.dtype(x), r.graph().value(x).shape);
}

ValueId used_output(Rewrite& r, size_t index) {
  return r.is_used(index) ? r.output(index) : kNoValue;
}

}  // namespace tenon::attention_forms
