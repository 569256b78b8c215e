#include "graph_partitioner/passes/attention_forms/rotation_trace.h"

#include <algorithm>
#include <cstring>

#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/attention_forms/rotary.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

// `part` is elements [start, start + size) of the last dim of `whole`, all of the others.
bool is_part(const Graph& graph, ValueId part, ValueId whole, int64_t start, int64_t size) {
  const Node* slice = graph.producer(part);
  const auto &cut = graph.value(part).shape, &full = graph.value(whole).shape;
  if (slice == nullptr || !slice->is("tenon::Slice") || slice->input(0) != whole) return false;
  if (!cut || !full || cut->size() != full->size()) return false;
  Shape expected = *full;
  expected.back() = size;
  const auto steps = slice->integers("steps");
  return *cut == expected && Dim::parse(slice->texts("starts").back()).is(start) &&
         std::ranges::all_of(steps, [](int64_t step) { return step == 1; });
}

bool joins_last_axis(const Graph& graph, const Node& node) {
  const auto& shape = graph.value(node.output(0)).shape;
  if (!node.is("Concat") || node.inputs.size() != 2 || !shape) return false;
  const auto axis = decomposition::normal_axis(node.integer("axis", 0), shape);
  return axis == static_cast<int64_t>(shape->size()) - 1;
}

// All of `value` turned, as exporters spell it.
std::optional<TracedRotation> spelled_rotation(const Rewrite& r, ValueId value) {
  const Graph& graph = r.graph();
  const Pattern turned = op("Concat",
                            {op("Neg", {op("tenon::Slice", {any("x")}, "second")}),
                             op("tenon::Slice", {any("x")}, "first")},
                            "turned");
  const Pattern rotated =
      op("Add", {op("Mul", {turned, any("sin")}), op("Mul", {any("x"), any("cos")})});
  Match match;
  const auto shape = r.shape(value);
  if (!shape || !shape->back().is_constant() || !rotated(graph, value, match)) return std::nullopt;
  const int64_t width = shape->back().value();
  const ValueId x = match["x"];
  if (r.shape(x) != shape || width % 2 != 0 ||
      !joins_last_axis(graph, *graph.producer(match["turned"])) ||
      !is_part(graph, match["first"], x, 0, width / 2) ||
      !is_part(graph, match["second"], x, width / 2, width / 2)) {
    return std::nullopt;
  }
  TracedRotation found;
  found.x = x;
  found.cos = match["cos"];
  found.sin = match["sin"];
  found.width = width;
  found.spelled = true;
  found.sources = match.sources;
  return found;
}

// The first elements of each head turned, the rest as it is.
std::optional<TracedRotation> partial_rotation(const Rewrite& r, ValueId value) {
  const Graph& graph = r.graph();
  const Node& join = *graph.producer(value);
  const auto shape = r.shape(value);
  if (!shape || !joins_last_axis(graph, join) || !shape->back().is_constant()) return std::nullopt;
  auto found = spelled_rotation(r, join.input(0));
  const Node* part = found ? graph.producer(found->x) : nullptr;
  if (part == nullptr) return std::nullopt;
  const ValueId x = part->input(0);
  const int64_t rest = shape->back().value() - found->width;
  if (r.shape(x) != shape || !is_part(graph, found->x, x, 0, found->width) ||
      !is_part(graph, join.input(1), x, found->width, rest)) {
    return std::nullopt;
  }
  for (const Node* node : {&join, part, graph.producer(join.input(1))}) {
    found->sources = ir::merge_sources(found->sources, node->sources);
  }
  found->x = x;
  return found;
}

std::optional<TracedRotation> rotation_op(const Rewrite& r, const Node& node) {
  const auto call = read_rotary(r, node);
  if (!call) return std::nullopt;
  TracedRotation found;
  found.x = call->x;
  found.cos = call->cos;
  found.sin = call->sin;
  found.positions = call->positions;
  found.width = call->width;
  found.heads = r.shape(call->x)->size() == 3 ? call->heads : 0;
  found.interleaved = call->interleaved;
  found.sources = node.sources;
  return found;
}

// The layout of what a view or a Transpose reads, where it only splits heads or swaps axes.
std::optional<std::string> layout_before(const Rewrite& r, const Node& node,
                                         const std::string& layout) {
  const auto from = r.shape(node.input(0)), to = r.shape(node.output(0));
  if (!from || !to) return std::nullopt;
  if (node.is("Transpose") && node.integers("perm") == std::vector<int64_t>{0, 2, 1, 3}) {
    if (layout == "bhsd") return "bshd";
    if (layout == "bshd") return "bhsd";
  }
  const bool heads_last = layout == "bshd" || layout == "bs(hd)";
  if (!node.is("Reshape") || !heads_last) return std::nullopt;
  if ((*from)[0] != (*to)[0] || from->size() < 3 || (*from)[1] != (*to)[1]) return std::nullopt;
  if (from->size() == 3) return "bs(hd)";
  if (from->size() == 4 && to->size() == 3) return "bshd";
  return std::nullopt;
}

// An op of four dims has its heads first; a spelled one turns each head as it lies.
bool fits(const TracedRotation& found, const Shape& shape, const std::string& layout) {
  if (found.spelled) return shape.size() == 4 && layout != "bhds";
  return layout == (shape.size() == 4 ? "bhsd" : "bs(hd)");
}

// --- angles of a spelled rotation ---

bool has_equal_halves(const ir::Tensor& tensor, int64_t half) {
  const size_t bytes = storage_bytes(tensor.dtype, half);
  if (tensor.bytes % (2 * bytes) != 0) return false;
  for (size_t at = 0; at < tensor.bytes; at += 2 * bytes) {
    if (std::memcmp(tensor.data + at, tensor.data + at + bytes, bytes) != 0) return false;
  }
  return true;
}

// The first half of an axis of a value whose halves along it are equal, made from first halves.
class HalfWriter {
 public:
  HalfWriter(Rewrite& r, int64_t half) : r_(r), half_(half) {}

  std::optional<ValueId> first_half(ValueId value, size_t axis) {
    const auto shape = r_.shape(value);
    if (!shape || axis >= shape->size() || !(*shape)[axis].is(2 * half_)) return std::nullopt;
    const bool is_last = axis + 1 == shape->size();
    if (r_.graph().value(value).is_constant()) {
      const bool equal = is_last && has_equal_halves(*r_.graph().value(value).constant, half_);
      if (!equal) return std::nullopt;
      return slice_axis(r_, value, static_cast<int64_t>(axis), 0, half_);
    }
    if (r_.graph().producer(value) == nullptr) return std::nullopt;
    const Node node = *r_.graph().producer(value);  // a copy: emitting moves nodes
    const auto found = half_of(node, axis, *shape);
    if (found) r_.absorb(node.sources);
    return found;
  }

 private:
  std::optional<ValueId> half_of(const Node& node, size_t axis, const Shape& shape) {
    const bool is_last = axis + 1 == shape.size();
    if (node.is("Concat")) return of_concat(node, axis, shape);
    if (node.is("Transpose")) return of_transpose(node, axis);
    if (node.is("Reshape") && is_last) return of_view(node, shape);
    if (node.is("Gather") && node.integer("axis", 0) == 0 && is_last) return of_gather(node);
    const bool has_scalar = node.is("Mul") && scalar_constant(r_.graph(), node.input(1));
    if (!node.is("Cos") && !node.is("Sin") && !node.is("Cast") && !has_scalar) return std::nullopt;
    return of_pointwise(node, axis, shape);
  }

  std::optional<ValueId> of_concat(const Node& node, size_t axis, const Shape& shape) {
    const auto joined = decomposition::normal_axis(node.integer("axis", 0), shape);
    const bool twice = node.inputs.size() == 2 && node.input(0) == node.input(1);
    if (joined != static_cast<int64_t>(axis) || !twice) return std::nullopt;
    return node.input(0);
  }

  std::optional<ValueId> of_transpose(const Node& node, size_t axis) {
    const std::vector<int64_t> perm = node.integers("perm");
    if (axis >= perm.size()) return std::nullopt;
    const auto inner = first_half(node.input(0), static_cast<size_t>(perm[axis]));
    return inner ? std::optional(r_.emit.transpose(*inner, perm)) : std::nullopt;
  }

  std::optional<ValueId> of_view(const Node& node, Shape shape) {
    const auto from = r_.shape(node.input(0));
    const auto inner = from ? first_half(node.input(0), from->size() - 1) : std::nullopt;
    if (!inner) return std::nullopt;
    shape.back() = half_;
    return r_.emit.reshape(*inner, std::move(shape));
  }

  std::optional<ValueId> of_gather(const Node& node) {
    const auto table = r_.shape(node.input(0));
    if (!table || table->size() != 2) return std::nullopt;
    const auto inner = first_half(node.input(0), 1);
    return inner ? std::optional(r_.emit.gather(*inner, node.input(1), 0)) : std::nullopt;
  }

  std::optional<ValueId> of_pointwise(Node node, size_t axis, Shape shape) {
    const auto inner = first_half(node.input(0), axis);
    if (!inner) return std::nullopt;
    const DType dtype = r_.dtype(node.output(0));
    node.inputs[0] = *inner;
    node.outputs.clear();
    shape[axis] = half_;
    return r_.emit.emit(std::move(node), dtype, std::move(shape));
  }

  Rewrite& r_;
  const int64_t half_;
};

}  // namespace

bool TracedRotation::same_angles(const TracedRotation& other) const {
  return cos == other.cos && sin == other.sin && positions == other.positions &&
         width == other.width && interleaved == other.interleaved && spelled == other.spelled;
}

std::optional<TracedRotation> trace_rotation(const Rewrite& r, ValueId value,
                                             const std::string& layout) {
  const Graph& graph = r.graph();
  std::vector<int> sources;
  std::string here = layout;
  while (graph.has_one_use(value) && graph.producer(value) != nullptr) {
    const Node& node = *graph.producer(value);
    auto found = rotation_op(r, node);
    if (!found && node.is("Add")) found = spelled_rotation(r, value);
    if (!found && node.is("Concat")) found = partial_rotation(r, value);
    if (found) {
      if (!fits(*found, *graph.value(found->x).shape, here)) return std::nullopt;
      found->layout = here;
      found->sources = ir::merge_sources(found->sources, sources);
      return found;
    }
    const auto before = layout_before(r, node, here);
    if (!before) return std::nullopt;
    sources = ir::merge_sources(sources, node.sources);
    here = *before;
    value = node.input(0);
  }
  return std::nullopt;
}

std::optional<ValueId> token_angles(Rewrite& r, ValueId angles, const TracedRotation& rotation) {
  const auto shape = r.shape(angles);
  const size_t heads = rotation.layout == "bshd" ? 2 : 1, tokens = 3 - heads;
  if (!shape || shape->size() != 4 || !(*shape)[heads].is(1)) return std::nullopt;
  const auto half = HalfWriter(r, rotation.width / 2).first_half(angles, 3);
  if (!half) return std::nullopt;
  return r.emit.reshape(*half, {(*shape)[0], (*shape)[tokens], rotation.width / 2});
}

}  // namespace tenon::attention_forms
