#include "graph_partitioner/passes/attention_forms/scores.h"

#include <cmath>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

// A score this far down never counts beside one that is kept.
constexpr double kHidden = -1e4;

// From the softmax down, a later stage may not be followed by an earlier one.
enum class Stage { kMask, kSoftcap, kScale };

std::optional<Scores> trace(const Graph& graph, ValueId value, Stage stage, Scores scores);

std::optional<Scores> trace_sum(const Graph& graph, const Node& node, const Scores& scores) {
  for (const size_t side : {0u, 1u}) {
    if (auto found = trace(graph, node.input(side), Stage::kMask, scores)) {
      found->added.push_back(node.input(1 - side));
      return found;
    }
  }
  return std::nullopt;
}

std::optional<Scores> trace_where(const Graph& graph, const Node& node, const Scores& scores) {
  for (const size_t side : {1u, 2u}) {
    const auto fill = scalar_constant(graph, node.input(3 - side));
    if (!fill || *fill > kHidden) continue;
    auto found = trace(graph, node.input(side), Stage::kMask, scores);
    if (!found) continue;
    found->hidden.push_back({node.input(0), side == 2, *fill});
    return found;
  }
  return std::nullopt;
}

std::optional<Scores> trace_softcap(const Graph& graph, ValueId value, Scores scores) {
  const Pattern divided =
      op("Mul", {op("Tanh", {op("Div", {any("x"), constant("cap")})}), constant("cap")});
  const Pattern multiplied =
      op("Mul", {op("Tanh", {op("Mul", {any("x"), constant("inverse")})}), constant("cap")});
  Match match;
  if (!divided(graph, value, match) && !multiplied(graph, value, match)) return std::nullopt;
  const double cap = *scalar_constant(graph, match["cap"]);
  if (const auto inverse = scalar_constant(graph, match["inverse"])) {
    // f32 or f16 constants: 1/cap as well as they can say it.
    if (std::abs(*inverse * cap - 1.0) > 1e-3) return std::nullopt;
  }
  if (cap <= 0.0) return std::nullopt;
  scores.softcap = cap;
  scores.sources = ir::merge_sources(scores.sources, match.sources);
  return trace(graph, match["x"], Stage::kScale, std::move(scores));
}

std::optional<Scores> trace_scale(const Graph& graph, const Node& node, Scores scores) {
  const bool divides = node.is("Div");
  for (const size_t side : {1u, 0u}) {
    const auto number = scalar_constant(graph, node.input(side));
    if (!number || (divides && side == 0)) continue;
    scores.scale = divides ? scores.scale / *number : scores.scale * *number;
    return trace(graph, node.input(1 - side), Stage::kScale, std::move(scores));
  }
  return std::nullopt;
}

std::optional<Scores> trace(const Graph& graph, ValueId value, Stage stage, Scores scores) {
  const Node* node = graph.producer(value);
  if (node == nullptr || !graph.has_one_use(value)) return std::nullopt;
  if (node->is(ir::kScaledDot)) {
    scores.dot = graph.value(value).producer;
    return scores;
  }
  scores.sources = ir::merge_sources(scores.sources, node->sources);
  if (node->is("Cast")) return trace(graph, node->input(0), stage, std::move(scores));
  if (node->is("Add") && stage == Stage::kMask) return trace_sum(graph, *node, scores);
  if (node->is("Where") && stage == Stage::kMask) return trace_where(graph, *node, scores);
  if (!node->is("Mul") && !node->is("Div")) return std::nullopt;
  if (stage != Stage::kScale) {
    if (auto capped = trace_softcap(graph, value, scores)) return capped;
  }
  return trace_scale(graph, *node, std::move(scores));
}

ValueId hidden_as_mask(Rewrite& r, const Hidden& hidden, DType dtype) {
  const ValueId zero = r.emit.scalar(dtype, 0.0), fill = r.emit.scalar(dtype, hidden.fill);
  return hidden.where_true ? r.emit.where(hidden.condition, fill, zero)
                           : r.emit.where(hidden.condition, zero, fill);
}

}  // namespace

std::optional<Scores> trace_scores(const Graph& graph, ValueId value) {
  return trace(graph, value, Stage::kMask, {});
}

ValueId write_mask(Rewrite& r, const Scores& scores, DType dtype) {
  if (scores.added.empty() && scores.hidden.size() == 1 && std::isinf(scores.hidden[0].fill)) {
    const Hidden& only = scores.hidden[0];
    return only.where_true ? r.emit.unary("Not", only.condition) : only.condition;
  }
  ValueId mask = kNoValue;
  for (const ValueId added : scores.added) mask = add_masks(r, mask, added);
  for (const Hidden& hidden : scores.hidden) {
    const DType own = mask == kNoValue ? dtype : r.dtype(mask);
    mask = add_masks(r, mask, hidden_as_mask(r, hidden, own));
  }
  return mask;
}

}  // namespace tenon::attention_forms
