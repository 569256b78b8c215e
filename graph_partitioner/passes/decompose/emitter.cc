#include "graph_partitioner/passes/decompose/emitter.h"

#include <numeric>

#include "base/convert.h"
#include "graph_partitioner/ir/primitives.h"

namespace tenon::decomposition {
namespace {

constexpr int64_t kMostKnownElements = 4096;

std::vector<std::string> texts(const std::vector<Dim>& dims) {
  std::vector<std::string> result;
  for (const Dim& dim : dims) result.push_back(dim.text());
  return result;
}

}  // namespace

bool Emitter::is_used(ValueId id) const {
  return id != kNoValue && (graph_.is_output(id) || !graph_.consumers(id).empty());
}

std::optional<std::vector<Dim>> Emitter::known_elements(ValueId id) const {
  if (id == kNoValue) return std::nullopt;
  const ir::Value& value = graph_.value(id);
  if (value.elements) return value.elements;
  if (!value.is_constant() || !is_integer(value.dtype)) return std::nullopt;
  const int64_t count = value.constant->elements();
  if (count > kMostKnownElements) return std::nullopt;
  std::vector<Dim> elements;
  for (int64_t i = 0; i < count; ++i) {
    elements.emplace_back(load_integer(value.dtype, value.constant->data, i));
  }
  return elements;
}

ValueId Emitter::emit(Node node, DType dtype, std::optional<Shape> shape) {
  const Node& replaced = graph_.node(position_);
  node.name = replaced.name;
  node.sources = replaced.sources;
  const ValueId base = replaced.outputs.front();
  ir::Value value;
  value.name = base == kNoValue ? replaced.op : graph_.value(base).name;
  value.dtype = dtype;
  value.shape = std::move(shape);
  const ValueId result = graph_.add_value(std::move(value));
  node.outputs = {result};
  graph_.insert_before(position_, std::move(node));
  return result;
}

std::optional<Shape> Emitter::broadcast(const std::vector<ValueId>& operands) const {
  Shape result;
  for (const ValueId id : operands) {
    const std::optional<Shape>& own = graph_.value(id).shape;
    if (!own) return std::nullopt;
    auto wider = broadcast_shapes(result, *own);
    if (!wider) return std::nullopt;
    result = std::move(*wider);
  }
  return result;
}

ValueId Emitter::scalar(DType dtype, double value) {
  return graph_.add_constant("scalar", ir::Tensor::of(dtype, {}, {value}));
}

ValueId Emitter::constant(const ir::TensorPtr& tensor, std::vector<int64_t> dims) {
  ir::Tensor relabelled = *tensor;
  relabelled.dims = std::move(dims);
  return graph_.add_constant("constant", std::make_shared<const ir::Tensor>(std::move(relabelled)));
}

ValueId Emitter::unary(std::string_view op, ValueId x) {
  Node node;
  node.op = op;
  node.inputs = {x};
  return emit(std::move(node), dtype(x), shape(x));
}

ValueId Emitter::binary(std::string_view op, ValueId a, ValueId b) {
  Node node;
  node.op = op;
  node.inputs = {a, b};
  return emit(std::move(node), dtype(a), broadcast({a, b}));
}

ValueId Emitter::compare(std::string_view op, ValueId a, ValueId b) {
  Node node;
  node.op = op;
  node.inputs = {a, b};
  return emit(std::move(node), DType::kBool, broadcast({a, b}));
}

ValueId Emitter::where(ValueId condition, ValueId yes, ValueId no) {
  Node node;
  node.op = "Where";
  node.inputs = {condition, yes, no};
  return emit(std::move(node), dtype(yes), broadcast({condition, yes, no}));
}

ValueId Emitter::cast(ValueId x, DType to) { return dtype(x) == to ? x : cast(x, to, {}); }

ValueId Emitter::cast(ValueId x, DType to, std::map<std::string, ir::Attribute> attributes) {
  Node node;
  node.op = "Cast";
  node.inputs = {x};
  node.attributes = std::move(attributes);
  return emit(std::move(node), to, shape(x));
}

ValueId Emitter::widen(ValueId x) {
  const DType own = dtype(x);
  const bool narrow = is_floating(own) && own != DType::kF32 && own != DType::kF64;
  return narrow ? cast(x, DType::kF32) : x;
}

ValueId Emitter::reduce(std::string_view op, ValueId x, std::vector<int64_t> axes) {
  auto reduced = shape(x);
  if (reduced) {
    for (const int64_t axis : axes) (*reduced)[axis] = 1;
  }
  const bool arg = op == "ArgMax" || op == "ArgMin";
  Node node;
  node.op = op;
  node.inputs = {x};
  if (arg) {
    node.attributes["axis"] = axes.front();
  } else {
    node.attributes["axes"] = std::move(axes);
  }
  node.attributes["keepdims"] = int64_t{1};
  return emit(std::move(node), arg ? DType::kI64 : dtype(x), std::move(reduced));
}

ValueId Emitter::position(const Shape& shape, int64_t axis) {
  Node node;
  node.op = "tenon::Position";
  node.attributes["axis"] = axis;
  return emit(std::move(node), DType::kI64, shape);
}

ValueId Emitter::dim_value(const Dim& dim, DType dtype) {
  if (dim.is_constant()) return scalar(dtype, static_cast<double>(dim.value()));
  Node node;
  node.op = "tenon::DimValue";
  node.attributes["dim"] = dim.text();
  return emit(std::move(node), dtype, Shape{});
}

ValueId Emitter::quantize(ValueId x, ValueId zero_point, DType to, bool saturate) {
  Node node;
  node.op = "tenon::Quantize";
  node.inputs = {x};
  if (zero_point != kNoValue) node.inputs.push_back(zero_point);
  node.attributes["saturate"] = int64_t{saturate};
  auto result = broadcast(node.inputs);
  return emit(std::move(node), to, std::move(result));
}

ValueId Emitter::reshape(ValueId x, Shape to) {
  if (shape(x) == to) return x;
  if (value(x).is_constant() && is_static(to)) return relabel(x, dtype(x), static_dims(to));
  Node node;
  node.op = "Reshape";
  node.inputs = {x};
  return emit(std::move(node), dtype(x), std::move(to));
}

ValueId Emitter::transpose(ValueId x, std::vector<int64_t> perm) {
  const auto from = shape(x);
  Shape to;
  for (const int64_t axis : perm) to.push_back(from->at(axis));
  Node node;
  node.op = "Transpose";
  node.inputs = {x};
  node.attributes["perm"] = std::move(perm);
  return emit(std::move(node), dtype(x), std::move(to));
}

ValueId Emitter::expand(ValueId x, Shape to) {
  Node node;
  node.op = "Expand";
  node.inputs = {x};
  return emit(std::move(node), dtype(x), std::move(to));
}

void Emitter::require(const Dim& left, ir::Relation relation, const Dim& right) {
  const Node& asks = graph_.node(position_);
  if (decide(left, relation, right) != true) {
    graph_.require({left, relation, right, asks.name, asks.sources});
  }
}

ValueId Emitter::slice(ValueId x, std::vector<Dim> starts, std::vector<int64_t> steps, Shape to) {
  for (size_t axis = 0; axis < to.size(); ++axis) {
    const Dim end = starts[axis] + (to[axis] - 1) * steps[axis] + 1;
    require(end, ir::Relation::kAtMost, shape(x)->at(axis));
  }
  Node node;
  node.op = "tenon::Slice";
  node.inputs = {x};
  node.attributes["starts"] = texts(starts);
  node.attributes["steps"] = std::move(steps);
  return emit(std::move(node), dtype(x), std::move(to));
}

ValueId Emitter::block_expand(ValueId x, int64_t axis, int64_t block, const Dim& size) {
  auto to = *shape(x);
  to[axis] = size;
  Node node;
  node.op = "tenon::BlockExpand";
  node.inputs = {x};
  node.attributes["axis"] = axis;
  node.attributes["block"] = block;
  return emit(std::move(node), dtype(x), std::move(to));
}

ValueId Emitter::gather(ValueId data, ValueId indices, int64_t axis, bool from_end) {
  const Shape rows = *shape(data), picked = *shape(indices);
  Shape to(rows.begin(), rows.begin() + axis);
  to.insert(to.end(), picked.begin(), picked.end());
  to.insert(to.end(), rows.begin() + axis + 1, rows.end());
  Node node;
  node.op = "Gather";
  node.inputs = {data, indices};
  node.attributes["axis"] = axis;
  if (!from_end) node.attributes["from_end"] = int64_t{0};
  return emit(std::move(node), dtype(data), std::move(to));
}

ValueId Emitter::pick(ValueId data, ValueId indices, int64_t axis, bool from_end) {
  Shape rest = *shape(data);
  rest.erase(rest.begin() + axis);
  Node node;
  node.op = std::string(ir::kPick);
  node.inputs = {data, indices};
  node.attributes["axis"] = axis;
  if (!from_end) node.attributes["from_end"] = int64_t{0};
  return emit(std::move(node), dtype(data), broadcast_shapes(rest, *shape(indices)));
}

ValueId Emitter::pad(ValueId x, std::vector<Dim> begins, ValueId fill, Shape to) {
  Node node;
  node.op = "tenon::Pad";
  node.inputs = {x, fill};
  node.attributes["pads_begin"] = texts(begins);
  return emit(std::move(node), dtype(x), std::move(to));
}

ValueId Emitter::bitcast(ValueId x, DType to) {
  if (dtype(x) == to) return x;
  if (value(x).is_constant()) return relabel(x, to, value(x).constant->dims);
  const Node* before = graph_.producer(x);
  if (before != nullptr && before->is("tenon::Bitcast") && dtype(before->input(0)) == to) {
    return before->input(0);
  }
  Node node;
  node.op = "tenon::Bitcast";
  node.inputs = {x};
  return emit(std::move(node), to, shape(x));
}

ValueId Emitter::relabel(ValueId x, DType dtype, std::vector<int64_t> dims) {
  const ir::Value constant = value(x);
  if (!constant.is_constant()) return kNoValue;
  ir::Tensor tensor = *constant.constant;
  tensor.dtype = dtype;
  tensor.dims = std::move(dims);
  return graph_.add_constant(constant.name, std::make_shared<const ir::Tensor>(std::move(tensor)));
}

std::optional<int64_t> normal_axis(int64_t axis, const std::optional<Shape>& shape) {
  if (!shape) return std::nullopt;
  const auto rank = static_cast<int64_t>(shape->size());
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return std::nullopt;
  return axis;
}

std::vector<int64_t> axes_between(int64_t first, int64_t last) {
  std::vector<int64_t> axes(last > first ? last - first : 0);
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

}  // namespace tenon::decomposition
