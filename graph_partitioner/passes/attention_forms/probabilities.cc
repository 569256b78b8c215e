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

// Numbers as they come back from codes.
struct Rounded {
  ValueId codes = kNoValue, scale = kNoValue, zero_point = kNoValue;
  std::vector<int> sources;
};

// By the product itself, whose operand has this scale, or by a node in front of it.
std::optional<Rounded> rounded_behind(const Graph& graph, ValueId value,
                                      const ir::BlockScale& scale) {
  if (scale != ir::BlockScale{}) return Rounded{value, scale.scale, scale.zero_point, {}};
  Rounded found;
  const Node* node = graph.producer(value);
  if (node != nullptr && node->is("Cast") && graph.has_one_use(value)) {
    found.sources = node->sources;
    value = node->input(0);
    node = graph.producer(value);
  }
  if (node == nullptr || !node->is("DequantizeLinear") || !graph.has_one_use(value)) {
    return std::nullopt;
  }
  found.codes = node->input(0);
  found.scale = node->input(1);
  found.zero_point = node->input(2);
  found.sources = ir::merge_sources(found.sources, node->sources);
  return found;
}

// Codes that count from `zero` on are those of another type that count from 0 on.
struct CodeType {
  DType stored;
  double zero;
  DType codes;
};
constexpr CodeType kCodeTypes[] = {
    {DType::kF8E4M3FN, 0, DType::kF8E4M3FN},
    {DType::kU8, 0, DType::kU8},
    {DType::kI8, 0, DType::kI8},
    {DType::kI8, -128, DType::kU8},
};

std::optional<DType> codes_from_zero(const Graph& graph, ValueId codes, ValueId zero_point) {
  const auto zero = zero_point == kNoValue ? 0.0 : scalar_constant(graph, zero_point);
  for (const CodeType& type : kCodeTypes) {
    if (graph.value(codes).dtype == type.stored && zero == type.zero) return type.codes;
  }
  return std::nullopt;
}

// The type that the quotient has where a quantiser rounds it; nullopt: none that we divide in.
std::optional<DType> divides_in(const Graph& graph, const Node& quantizer) {
  constexpr int64_t kFloat = 1;  // ONNX's number of float32
  const int64_t precision = quantizer.integer("precision", 0);
  if (precision == kFloat) return DType::kF32;
  const DType numbers = graph.value(quantizer.input(0)).dtype;
  if (precision != 0 || graph.value(quantizer.input(1)).dtype != numbers) return std::nullopt;
  return numbers;
}

// What makes codes as they are brought back: by the same number, with the same zero.
const Node* quantizer_of(const Graph& graph, const Rounded& rounded) {
  const Node* node = graph.producer(rounded.codes);
  if (node == nullptr || !node->is("QuantizeLinear") || !graph.has_one_use(rounded.codes)) {
    return nullptr;
  }
  const auto number = scalar_constant(graph, rounded.scale);
  const bool fits = number && *number > 0 && scalar_constant(graph, node->input(1)) == number &&
                    codes_from_zero(graph, rounded.codes, rounded.zero_point) ==
                        codes_from_zero(graph, rounded.codes, node->input(2)) &&
                    node->integer("saturate", 1) != 0 && divides_in(graph, *node);
  return fits ? node : nullptr;
}

}  // namespace

std::optional<Probabilities> trace_probabilities(const Graph& graph, ValueId value,
                                                 const ir::BlockScale& scale) {
  const auto rounded = rounded_behind(graph, value, scale);
  if (!rounded) return trace_numbers(graph, value);
  const Node* quantizer = quantizer_of(graph, *rounded);
  const auto codes = codes_from_zero(graph, rounded->codes, rounded->zero_point);
  if (quantizer == nullptr || !codes) return std::nullopt;
  auto found = trace_numbers(graph, quantizer->input(0));
  if (!found) return std::nullopt;
  found->rounded_by = static_cast<float>(*scalar_constant(graph, rounded->scale));
  found->codes = *codes;
  found->divided_in = *divides_in(graph, *quantizer);
  found->sources = ir::merge_sources(found->sources, quantizer->sources);
  found->sources = ir::merge_sources(found->sources, rounded->sources);
  return found;
}

}  // namespace tenon::attention_forms
