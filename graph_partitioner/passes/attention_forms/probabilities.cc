#include "graph_partitioner/passes/attention_forms/probabilities.h"

#include <algorithm>

#include "graph_partitioner/passes/decompose/emitter.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

bool is_last_axis(const Graph& graph, ValueId value, int64_t axis) {
  const auto& shape = graph.value(value).shape;
  return shape &&
         decomposition::normal_axis(axis, shape) == static_cast<int64_t>(shape->size()) - 1;
}

// The softmax's input behind `value`, which is its result, perhaps guarded and cast.
std::optional<Probabilities> trace_softmax(const Graph& graph, ValueId value) {
  const Pattern softmax = op("Softmax", {any("scores")}, "softmax");
  // Rows without a key: some exporters turn the NaN into 0.
  const Pattern guarded =
      op("Where", {op("IsNaN", {softmax}), constant("zero"), softmax}, "guarded");
  const Pattern pattern = optional("Cast", either(guarded, softmax));
  Match match;
  if (!pattern(graph, value, match) || !graph.has_one_use(value)) return std::nullopt;
  if (match["zero"] != kNoValue && scalar_constant(graph, match["zero"]) != 0.0)
    return std::nullopt;
  if (match["guarded"] == kNoValue && !graph.has_one_use(match["softmax"])) return std::nullopt;
  const Node& node = *graph.producer(match["softmax"]);
  const bool flattens = node.since_version > 0 && node.since_version < 13;
  const int64_t axis = node.integer("axis", flattens ? 1 : -1);
  if (!is_last_axis(graph, match["scores"], axis)) return std::nullopt;
  Probabilities found;
  found.scores = match["scores"];
  found.is_guarded = match["guarded"] != kNoValue;
  found.sources = match.sources;
  return found;
}

// What a Slice reads that drops the last element of the last axis only.
std::optional<ValueId> before_drop(const Graph& graph, ValueId value) {
  const Node* node = graph.producer(value);
  if (node == nullptr || !node->is("tenon::Slice") || !graph.has_one_use(value)) {
    return std::nullopt;
  }
  const auto &cut = graph.value(value).shape, &whole = graph.value(node->input(0)).shape;
  if (!cut || !whole || cut->size() != whole->size()) return std::nullopt;
  Shape expected = *cut;
  expected.back() = expected.back() + 1;
  const auto starts = node->texts("starts");
  const auto steps = node->integers("steps");
  const bool from_first = std::ranges::all_of(starts, [](const auto& s) { return s == "0"; }) &&
                          std::ranges::all_of(steps, [](int64_t s) { return s == 1; });
  if (!from_first || *whole != expected) return std::nullopt;
  return node->input(0);
}

// One number per head, repeated over batch and queries.
ValueId sinks_behind(const Graph& graph, ValueId value, std::vector<int>& sources) {
  for (const Node* node = graph.producer(value);
       node != nullptr && (node->is("Expand") || node->is("Cast")); node = graph.producer(value)) {
    sources = ir::merge_sources(sources, node->sources);
    value = node->input(0);
  }
  const auto& shape = graph.value(value).shape;
  const bool per_head = shape && shape->size() == 4 && (*shape)[0].is(1) &&
                        (*shape)[1].is_constant() && (*shape)[2].is(1) && (*shape)[3].is(1);
  return per_head ? value : kNoValue;
}

// Scores and sinks that were joined before the softmax.
bool part_sinks(const Graph& graph, Probabilities& found) {
  const Pattern joined = op("Concat", {any("scores"), any("sinks")}, "joined");
  const Pattern wide = optional("Cast", joined);
  const Pattern lowered = op("Sub", {wide, op("ReduceMax", {wide}, "largest")});
  Match match;
  if (!either(optional("Cast", lowered), wide)(graph, found.scores, match)) return false;
  const Node& join = *graph.producer(match["joined"]);
  const auto& sinks = graph.value(match["sinks"]).shape;
  if (!is_last_axis(graph, match["joined"], join.integer("axis", 0)) || !sinks ||
      !sinks->back().is(1)) {
    return false;
  }
  if (const Node* largest = graph.producer(match["largest"])) {
    const std::vector<int64_t> axes = largest->integers("axes");
    if (axes.size() != 1 || !is_last_axis(graph, match["joined"], axes.front())) return false;
  }
  found.sources = ir::merge_sources(found.sources, match.sources);
  found.scores = match["scores"];
  found.sinks = sinks_behind(graph, match["sinks"], found.sources);
  return found.sinks != kNoValue;
}

std::optional<Probabilities> trace_numbers(const Graph& graph, ValueId value) {
  const auto with_sink = before_drop(graph, value);
  auto found = trace_softmax(graph, with_sink.value_or(value));
  if (!found || !with_sink) return found;
  found->sources = ir::merge_sources(found->sources, graph.producer(value)->sources);
  return part_sinks(graph, *found) ? found : std::nullopt;
}

// What became codes by the same number that brings them back.
const Node* quantizer_of(const Graph& graph, ValueId codes, const ir::BlockScale& scale) {
  const Node* node = graph.producer(codes);
  if (node == nullptr || !node->is("QuantizeLinear") || !graph.has_one_use(codes)) return nullptr;
  const auto number = scalar_constant(graph, scale.scale);
  const bool fits = number && *number > 0 && scalar_constant(graph, node->input(1)) == number &&
                    scale.zero_point == kNoValue && node->integer("saturate", 1) != 0 &&
                    node->integer("precision", 0) == 0 &&
                    graph.value(node->input(0)).dtype == graph.value(node->input(1)).dtype &&
                    graph.value(codes).dtype == DType::kF8E4M3FN;
  return fits ? node : nullptr;
}

}  // namespace

std::optional<Probabilities> trace_probabilities(const Graph& graph, ValueId value,
                                                 const ir::BlockScale& scale) {
  if (scale == ir::BlockScale{}) return trace_numbers(graph, value);
  const Node* quantizer = quantizer_of(graph, value, scale);
  if (quantizer == nullptr) return std::nullopt;
  auto found = trace_numbers(graph, quantizer->input(0));
  if (!found) return std::nullopt;
  found->rounded_by = static_cast<float>(*scalar_constant(graph, scale.scale));
  found->divided_in = graph.value(quantizer->input(0)).dtype;
  found->sources = ir::merge_sources(found->sources, quantizer->sources);
  return found;
}

}  // namespace tenon::attention_forms
