#include "distributed/sharding/wishes.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/support.h"
#include "distributed/sharding/cut.h"
#include "distributed/sharding/cut_dot.h"
#include "graph_partitioner/ir/fusions.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;

// A dim that may count from the back.
bool is_dim(int64_t axis, size_t wanted, size_t dims) {
  const int64_t from_front = axis < 0 ? axis + static_cast<int64_t>(dims) : axis;
  return from_front == static_cast<int64_t>(wanted);
}

struct Answer {
  std::optional<Wish> wish;
  std::string reason;  // where there is none
};

// The first that says something; a second one must say the same.
bool add(Answer& answer, Wish wish) {
  if (!answer.wish) answer.wish = wish;
  return *answer.wish == wish;
}

Answer of_table(const Annotation& annotation) {
  if (!annotation.weight) return {{}, "it says nothing of its table"};
  if (annotation.weight->empty()) return {Wish::kWhole, ""};
  if (annotation.weight->front() == 0) return {Wish::kRows, ""};
  return {{}, "a table is cut along its rows"};
}

Answer of_product(const Graph& graph, const Node& node, const Annotation& annotation) {
  const ScaledDot dot = ScaledDot::from(node);
  Answer answer;
  if (annotation.weight) {
    if (annotation.weight->empty()) add(answer, Wish::kWhole);
    for (const int64_t axis : *annotation.weight) {
      add(answer, axis == 0 ? Wish::kRows : Wish::kColumns);
    }
  }
  const std::string conflict = "its specs do not fit together";
  if (annotation.result && !annotation.result->empty()) {
    const size_t dims = graph.value(node.output(0)).shape->size();
    if (!is_dim(annotation.result->front(), dims - 1, dims)) {
      return {{}, "a result is cut by columns, not along other dims"};
    }
    if (!add(answer, Wish::kColumns)) return {{}, conflict};
  }
  if (annotation.left && !annotation.left->empty()) {
    const size_t dims = graph.value(dot.a).shape->size();
    if (!is_dim(annotation.left->front(), k_axis(graph, dot), dims)) {
      return {{}, "what it reads is cut along the sum, not along other dims"};
    }
    if (!add(answer, Wish::kRows)) return {{}, conflict};
  }
  if (!answer.wish) return {{}, "it does not say how its weight is cut"};
  return answer;
}

Support can_follow(const Graph& graph, const Node& node, Wish wish, int64_t ranks) {
  if (wish == Wish::kWhole) return Support::yes();
  const ScaledDot dot = ScaledDot::from(node);
  const auto [n, k] = weight_size(graph, dot);
  if (wish == Wish::kColumns) {
    if (!deal_columns(n, 1, ranks)) return Support::no("it has fewer columns than ranks");
    return can_cut_columns(graph, dot);
  }
  const auto shares = deal_columns(k, dot.scale_b.block, ranks);
  if (!shares) return Support::no("it has fewer rows, or blocks of them, than ranks");
  return can_cut_rows(graph, dot, *shares);
}

Answer answer_for(const Graph& graph, const Node& node, const Annotation& annotation,
                  int64_t ranks) {
  if (annotation.is_table) return of_table(annotation);
  if (Support weight = has_weight(graph, node); !weight) return {{}, weight.reason};
  Answer answer = of_product(graph, node, annotation);
  if (!answer.wish) return answer;
  if (Support can = can_follow(graph, node, *answer.wish, ranks); !can) return {{}, can.reason};
  return answer;
}

std::vector<NodeId> nodes_of(const Graph& graph, const Annotation& annotation) {
  std::vector<NodeId> found;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.is(annotation.is_table ? "Gather" : ir::kScaledDot)) continue;
    const ir::Value& weight = graph.value(node.input(annotation.is_table ? 0 : 1));
    const bool is_named =
        std::ranges::find(annotation.weights, weight.name) != annotation.weights.end();
    if (weight.is_constant() && is_named) found.push_back(id);
  }
  return found;
}

}  // namespace

std::string_view name(Wish wish) {
  switch (wish) {
    case Wish::kWhole:
      return "whole";
    case Wish::kColumns:
      return "columns";
    case Wish::kRows:
      return "rows";
  }
  return "";
}

Wishes find_wishes(const Graph& graph, const Annotations& annotations, int64_t ranks) {
  Wishes wishes;
  wishes.unfollowed = annotations.unfollowed;
  for (const Annotation& annotation : annotations.nodes) {
    const auto found = nodes_of(graph, annotation);
    if (found.empty()) {
      wishes.unfollowed.push_back(
          {annotation.node,
           fmt::format("nothing in this graph reads '{}' as a weight", annotation.weights[0])});
    }
    for (const NodeId id : found) {
      Answer answer = answer_for(graph, graph.node(id), annotation, ranks);
      const auto known = wishes.nodes.find(id);
      if (answer.wish && known != wishes.nodes.end() && known->second != *answer.wish) {
        answer = {{}, fmt::format("'{}' asks for {}", wishes.asked_by[id], name(known->second))};
      }
      if (answer.wish) {
        wishes.nodes[id] = *answer.wish;
        wishes.asked_by[id] = annotation.node;
      } else {
        wishes.unfollowed.push_back({annotation.node, answer.reason});
      }
    }
  }
  return wishes;
}

}  // namespace tenon::distributed
