#include "graph_partitioner/passes/attention_forms/tensor_trace.h"

#include <algorithm>

#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

// Letters of a Transpose's input, from those of its output.
std::string before_transpose(const std::string& letters, const std::vector<int64_t>& perm) {
  std::string before(letters.size(), '?');
  for (size_t i = 0; i < perm.size(); ++i) before.at(perm[i]) = letters[i];
  return before;
}

bool step_through_number(const Graph& graph, const Node& node, TensorTrace& trace) {
  const bool divides = node.is("Div");
  if (!divides && !node.is("Mul")) return false;
  for (const size_t side : {1u, 0u}) {
    const auto number = scalar_constant(graph, node.input(side));
    if (!number || (divides && side == 0)) continue;
    if (!trace.rounding.empty()) {
      Node number_last = node;
      std::swap(number_last.inputs[0], number_last.inputs[1 - side]);
      trace.rounding.push_back({std::move(number_last), graph.value(node.output(0)).dtype});
    } else {
      trace.scale = divides ? trace.scale / *number : trace.scale * *number;
    }
    trace.value = node.input(1 - side);
    return true;
  }
  return false;
}

bool has_one_scale(const Graph& graph, const Node& node) {
  const auto& shape = graph.value(node.input(1)).shape;
  return shape && element_count(*shape).is(1) && node.integer("block_size", 0) == 0;
}

bool step_through_rounding(const Graph& graph, const Node& node, TensorTrace& trace) {
  const bool scales = node.is("QuantizeLinear") || node.is("DequantizeLinear");
  const bool casts = node.is("Cast") && !trace.rounding.empty();
  if (!casts && !(scales && has_one_scale(graph, node))) return false;
  trace.rounding.push_back({node, graph.value(node.output(0)).dtype});
  trace.value = node.input(0);
  return true;
}

bool step_through_transpose(const Node& node, TensorTrace& trace) {
  const std::vector<int64_t> perm = node.integers("perm");
  if (!node.is("Transpose") || perm.size() != trace.layout.size()) return false;
  trace.layout = before_transpose(trace.layout, perm);
  trace.value = node.input(0);
  return true;
}

bool step_through_repeat(Rewrite& r, const Node& node, TensorTrace& trace) {
  const Graph& graph = r.graph();
  if (trace.layout != "bhsd" || !node.is("Reshape")) return false;
  const Node* expand = graph.producer(node.input(0));
  if (expand == nullptr || !expand->is("Expand")) return false;
  const Node* split = graph.producer(expand->input(0));
  if (split == nullptr || !split->is("Reshape")) return false;
  const auto whole = r.shape(trace.value), wide = r.shape(node.input(0)),
             one = r.shape(expand->input(0)), inner = r.shape(split->input(0));
  if (!whole || !wide || !one || !inner || inner->size() != 4 || wide->size() != 5) return false;
  const Shape& k = *inner;
  if (*one != Shape{k[0], k[1], 1, k[2], k[3]}) return false;
  if (*wide != Shape{k[0], k[1], (*wide)[2], k[2], k[3]} || !k[1].is_constant()) return false;
  if (*whole != Shape{k[0], k[1] * (*wide)[2], k[2], k[3]}) return false;
  trace.heads = k[1].value();
  trace.value = split->input(0);
  trace.sources = ir::merge_sources(trace.sources, expand->sources);
  trace.sources = ir::merge_sources(trace.sources, split->sources);
  return true;
}

// The axis of size 1 that `small` lacks; nullopt where the two differ in more.
std::optional<size_t> dropped_axis(const Shape& large, const Shape& small) {
  if (large.size() != small.size() + 1) return std::nullopt;
  for (size_t axis = 0; axis < large.size(); ++axis) {
    Shape without = large;
    without.erase(without.begin() + static_cast<int64_t>(axis));
    if (large[axis].is(1) && without == small) return axis;
  }
  return std::nullopt;
}

bool step_through_part(Rewrite& r, const Node& node, TensorTrace& trace) {
  const Graph& graph = r.graph();
  const Node* slice = node.is("Reshape") ? graph.producer(node.input(0)) : nullptr;
  if (slice == nullptr || !slice->is("tenon::Slice")) return false;
  const Node* transpose = graph.producer(slice->input(0));
  if (transpose == nullptr || !transpose->is("Transpose")) return false;
  const auto part = r.shape(trace.value), cut = r.shape(node.input(0)),
             packed = r.shape(transpose->input(0));
  if (!part || !cut || !packed || part->size() != 4) return false;
  const auto axis = dropped_axis(*cut, *part);
  if (!axis) return false;
  const std::vector<int64_t> perm = transpose->integers("perm"), steps = slice->integers("steps");
  const std::vector<std::string> starts = slice->texts("starts");
  Shape expected;  // only this one axis is cut
  for (const int64_t source : perm) expected.push_back((*packed)[source]);
  expected[*axis] = 1;
  if (*cut != expected ||
      std::any_of(steps.begin(), steps.end(), [](int64_t s) { return s != 1; })) {
    return false;
  }
  const std::string letters =
      before_transpose(trace.layout.substr(0, *axis) + '#' + trace.layout.substr(*axis), perm);
  PackedPart found;
  found.packed = transpose->input(0);
  found.axis = perm[*axis];
  found.start = Dim::parse(starts.at(*axis));
  found.shape = *packed;
  found.shape.erase(found.shape.begin() + found.axis);
  trace.layout = letters.substr(0, found.axis) + letters.substr(found.axis + 1);
  trace.part = std::move(found);
  trace.sources = ir::merge_sources(trace.sources, slice->sources);
  trace.sources = ir::merge_sources(trace.sources, transpose->sources);
  return true;
}

}  // namespace

TensorTrace untraced(ValueId value, const std::string& layout) {
  TensorTrace trace;
  trace.value = value;
  trace.layout = layout;
  return trace;
}

TensorTrace trace_tensor(Rewrite& r, TensorTrace start, const std::vector<std::string>& allowed) {
  TensorTrace here = std::move(start), best = here;
  while (const Node* node = here.part ? nullptr : r.graph().producer(here.value)) {
    const std::vector<int> sources = node->sources;
    if (!step_through_number(r.graph(), *node, here) && !step_through_transpose(*node, here) &&
        !step_through_rounding(r.graph(), *node, here) && !step_through_repeat(r, *node, here) &&
        !step_through_part(r, *node, here)) {
      break;
    }
    here.sources = ir::merge_sources(here.sources, sources);
    if (std::find(allowed.begin(), allowed.end(), here.layout) != allowed.end()) best = here;
  }
  return best;
}

ValueId materialize(Rewrite& r, const TensorTrace& trace) {
  ValueId value = trace.value;
  if (const auto& part = trace.part) {
    value = r.emit.reshape(slice_axis(r, part->packed, part->axis, part->start, 1), part->shape);
  }
  if (trace.rounding.empty()) return value;
  // In front of a view of heads, where it is the epilogue of what made them.
  const Shape heads = *r.graph().value(value).shape;
  while (const Node* view = r.graph().producer(value)) {
    if (!view->is("Reshape") || !r.shape(view->input(0))) break;
    value = view->input(0);
  }
  for (auto step = trace.rounding.rbegin(); step != trace.rounding.rend(); ++step) {
    Node node = step->node;
    node.inputs[0] = value;
    value = r.emit.emit(std::move(node), step->result, r.graph().value(value).shape);
  }
  return r.emit.reshape(value, heads);
}

}  // namespace tenon::attention_forms
