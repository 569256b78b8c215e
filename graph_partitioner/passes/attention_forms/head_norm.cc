#include "graph_partitioner/passes/attention_forms/head_norm.h"

#include <algorithm>

#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

constexpr std::string_view kNorms[] = {"RMSNormalization", "SimplifiedLayerNormalization",
                                       "com.microsoft::SimplifiedLayerNormalization"};

bool is_last_axis(const Graph& graph, ValueId value, int64_t axis) {
  const auto& shape = graph.value(value).shape;
  return shape &&
         decomposition::normal_axis(axis, shape) == static_cast<int64_t>(shape->size()) - 1;
}

std::optional<HeadNorm> norm_op(const Graph& graph, const Node& node) {
  const bool is_norm = std::ranges::find(kNorms, node.op) != std::end(kNorms);
  if (!is_norm || !is_last_axis(graph, node.input(0), node.integer("axis", -1))) {
    return std::nullopt;
  }
  if (node.integer("stash_type", 1) != 1) return std::nullopt;
  if (node.outputs.size() > 1 && !graph.consumers(node.output(1)).empty()) return std::nullopt;
  return HeadNorm{node.input(0), node.input(1), node.number("epsilon", 1e-5f), node.sources};
}

Pattern spelled_norm() {
  const Pattern x = optional("Cast", any("x"));
  const Pattern squares = either(op("Pow", {x, constant("two")}), op("Mul", {x, x}));
  const Pattern mean = op("ReduceMean", {squares}, "mean");
  const Pattern safe = op("Add", {mean, constant("epsilon")});
  const Pattern root = op("Sqrt", {safe});
  const Pattern inverse =
      either(either(op("Reciprocal", {root}), op("Div", {constant("one"), root})),
             op("Pow", {safe, constant("power")}));
  const Pattern unit = either(op("Mul", {x, inverse}), op("Div", {x, root}));
  return optional("Cast", op("Mul", {optional("Cast", unit), any("weight")}));
}

std::optional<HeadNorm> norm_spelled(const Graph& graph, ValueId value) {
  static const Pattern pattern = spelled_norm();
  Match match;
  if (!pattern(graph, value, match)) return std::nullopt;
  const auto is = [&](std::string_view name, double wanted) {
    return match[name] == ir::kNoValue || scalar_constant(graph, match[name]) == wanted;
  };
  if (!is("two", 2.0) || !is("one", 1.0) || !is("power", -0.5)) return std::nullopt;
  const std::vector<int64_t> axes = graph.producer(match["mean"])->integers("axes");
  if (axes.size() != 1 || !is_last_axis(graph, match["x"], axes[0])) return std::nullopt;
  const auto epsilon = static_cast<float>(*scalar_constant(graph, match["epsilon"]));
  return HeadNorm{match["x"], match["weight"], epsilon, match.sources};
}

}  // namespace

std::optional<HeadNorm> trace_head_norm(const Rewrite& r, ValueId value, int64_t head_size) {
  const Graph& graph = r.graph();
  std::vector<int> views;
  const Node* node = graph.producer(value);
  for (; node != nullptr && graph.has_one_use(value) && node->is("Reshape");
       node = graph.producer(value)) {
    views = ir::merge_sources(views, node->sources);
    value = node->input(0);
  }
  if (node == nullptr || !graph.has_one_use(value)) return std::nullopt;
  auto norm = norm_op(graph, *node);
  if (!norm) norm = norm_spelled(graph, value);
  if (!norm || r.dtype(norm->x) != r.dtype(value)) return std::nullopt;
  const auto x = r.shape(norm->x), weight = r.shape(norm->weight);
  if (!x || !weight || *weight != Shape{head_size} || !x->back().is(head_size)) {
    return std::nullopt;
  }
  norm->sources = ir::merge_sources(norm->sources, views);
  return norm;
}

}  // namespace tenon::attention_forms
