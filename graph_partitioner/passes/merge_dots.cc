#include "graph_partitioner/passes/merge_dots.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::ValueId;

// Each dot is a piece of code of its own in the kernel.
constexpr size_t kMostDots = 8;

bool is_constant(const Graph& graph, ValueId id) {
  return id == kNoValue || graph.value(id).is_constant();
}

// Packed when the session is created, one behind the other.
bool has_constant_weight(const Graph& graph, const ScaledDot& dot) {
  const ir::Value& b = graph.value(dot.b);
  return b.is_constant() && (dot.b_dims.size() == 2 || b.shape->size() == 2) &&
         is_constant(graph, dot.scale_b.scale) && is_constant(graph, dot.scale_b.zero_point);
}

// Views of rows made for each dot separately are the same rows.
ValueId viewed(const Graph& graph, ValueId id) {
  for (const Node* view = graph.producer(id); view && view->is("Reshape");
       view = graph.producer(id)) {
    id = view->input(0);
  }
  return id;
}

// What dots must agree in; empty for one that cannot be merged.
std::string kind_of(const Graph& graph, const Node& node) {
  const ScaledDot dot = ScaledDot::from(node);
  const auto& rows = graph.value(dot.a).shape;
  if (node.outputs.size() != 1 || !graph.value(node.output(0)).shape || !rows || dot.a_k_first ||
      dot.scale_a != ir::BlockScale{} || !has_constant_weight(graph, dot)) {
    return "";
  }
  const auto type_of = [&](ValueId id) {
    return id == kNoValue ? DType::kUndefined : graph.value(id).dtype;
  };
  const ir::BlockScale& scale = dot.scale_b;
  const DType element = dot.b_type != DType::kUndefined ? dot.b_type : graph.value(dot.b).dtype;
  const DType stored =
      scale.scale_type != DType::kUndefined ? scale.scale_type : type_of(scale.scale);
  const DType scales = scale.rounded != DType::kUndefined ? scale.rounded : stored;
  return fmt::format("{} {} {} {} {} {} {} {} {}", viewed(graph, dot.a), text(*rows), name(element),
                     name(scales), scale.block, scale.per_channel, name(type_of(scale.zero_point)),
                     scale.zero_offset, dot.accuracy_level);
}

class Merger {
 public:
  Merger(Graph& graph, const SupportsFn& supports) : graph_(graph), supports_(supports) {}

  void run() {
    std::map<std::string, std::vector<NodeId>> kinds;
    for (const NodeId id : graph_.order()) {
      if (!graph_.node(id).is(ir::kScaledDot)) continue;
      const std::string kind = kind_of(graph_, graph_.node(id));
      if (!kind.empty()) kinds[kind].push_back(id);
    }
    for (const auto& [kind, dots] : kinds) {
      if (dots.size() > 1) merge_independent(dots);
    }
  }

 private:
  // Groups of dots, in topological order, of which none waits for another one of its group.
  void merge_independent(std::vector<NodeId> dots) {
    while (dots.size() > 1) {
      std::vector<NodeId> group, rest;
      for (const NodeId id : dots) {
        const bool joins = group.size() < kMostDots && can_join(id, group);
        (joins ? group : rest).push_back(id);
      }
      if (group.size() > 1) merge(group);
      dots = std::move(rest);
    }
  }

  bool can_join(NodeId id, const std::vector<NodeId>& group) const {
    const Node& node = graph_.node(id);
    const ScaledDot dot = ScaledDot::from(node);
    const auto waits = [&](ValueId input) {
      return input != kNoValue && input != dot.a && depends_on(input, group);
    };
    return !waits(dot.alpha) && !waits(dot.bias) &&
           std::none_of(dot.extra.begin(), dot.extra.end(), [&](ValueId operand) {
             return !is_gate(operand, node, group) && waits(operand);
           });
  }

  // The result of a dot of the group that is the operand of this one's body alone.
  bool is_gate(ValueId operand, const Node& reader, const std::vector<NodeId>& group) const {
    const NodeId from = graph_.value(operand).producer;
    return std::find(group.begin(), group.end(), from) != group.end() &&
           graph_.has_one_use(operand) &&
           graph_.value(operand).shape == graph_.value(reader.output(0)).shape;
  }

  bool depends_on(ValueId value, const std::vector<NodeId>& group) const {
    std::set<NodeId> seen;
    std::vector<NodeId> open{graph_.value(value).producer};
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      if (id == ir::kNoNode || !seen.insert(id).second) continue;
      if (std::find(group.begin(), group.end(), id) != group.end()) return true;
      for (const ValueId input : graph_.node(id).inputs) {
        if (input != kNoValue) open.push_back(graph_.value(input).producer);
      }
    }
    return false;
  }

  void merge(const std::vector<NodeId>& group) {
    ir::MergedDots merged;
    const ValueId rows = graph_.node(group.front()).input(0);
    for (const NodeId id : group) {
      merged.dots.push_back(graph_.node(id));
      merged.dots.back().inputs[0] = rows;
    }
    Node node;
    merged.write_to(node, graph_);
    if (!supports_(graph_, node)) return;
    replace_nodes(graph_, group, std::move(node));
    graph_.remove_dead_nodes();
    graph_.sort_topologically();
  }

  Graph& graph_;
  const SupportsFn& supports_;
};

}  // namespace

void merge_dots(Graph& graph, const SupportsFn& supports) { Merger(graph, supports).run(); }

}  // namespace tenon
