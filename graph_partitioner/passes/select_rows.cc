#include "graph_partitioner/passes/select_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/free_rows.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// All dims but the last.
Shape leading(const Shape& shape) { return {shape.begin(), shape.end() - 1}; }

bool slices_rows(const Graph& graph, const Node& node) {
  const Shape &from = *graph.value(node.input(0)).shape, &to = *graph.value(node.output(0)).shape;
  const std::vector<std::string> starts = node.texts("starts");
  return from.size() == to.size() && from.back() == to.back() && starts.back() == "0" &&
         node.integers("steps").back() == 1;
}

// One index for all.
bool gathers_one_row(const Graph& graph, const Node& node) {
  const Shape& from = *graph.value(node.input(0)).shape;
  const auto& indices = graph.value(node.input(1)).shape;
  const auto rank = static_cast<int64_t>(from.size());
  const int64_t axis = node.integer("axis", 0);
  return indices && element_count(*indices).is(1) && (axis < 0 ? axis + rank : axis) < rank - 1;
}

// One index for each batch row.
bool gathers_one_row_each(const Graph& graph, const Node& node) {
  const Shape& from = *graph.value(node.input(0)).shape;
  const auto& indices = graph.value(node.input(1)).shape;
  const auto batch = static_cast<size_t>(node.integer("batch_dims", 0));
  if (!indices || indices->size() != batch + 1 || !indices->back().is_constant()) return false;
  return static_cast<int64_t>(batch) + indices->back().value() < static_cast<int64_t>(from.size());
}

struct Selection {
  std::string_view op;
  bool (*picks_rows)(const Graph& graph, const Node& node);
};
constexpr Selection kSelections[] = {
    {"tenon::Slice", slices_rows},
    {"Gather", gathers_one_row},
    {"GatherND", gathers_one_row_each},
};

// Fewer rows of `input(0)`, each as it is.
bool picks_rows(const Graph& graph, const Node& node) {
  const auto* const known = std::ranges::find(kSelections, node.op, &Selection::op);
  if (known == std::end(kSelections)) return false;
  const auto &from = graph.value(node.input(0)).shape, &to = graph.value(node.output(0)).shape;
  return from && to && from->size() >= 2 && to->size() >= 2 && known->picks_rows(graph, node);
}

// What computes the rows that a selection picks from, row by row.
class RowRegion {
 public:
  RowRegion(const Graph& graph, NodeId selection)
      : graph_(graph), selection_(selection), picked_(graph.node(selection).input(0)) {}

  struct Found {
    std::vector<NodeId> nodes;  // in topological order
    ValueId rows = kNoValue;    // what they are computed from
  };

  // nullopt where nothing is gained.
  std::optional<Found> find() {
    if (!take_product()) start_at(picked_);
    Found best{taken(), *open_.begin()};
    while (expand_last()) {
      if (open_.size() == 1) best = {taken(), *open_.begin()};
    }
    const bool gains = std::ranges::any_of(best.nodes, [&](NodeId id) {
      const Node& node = graph_.node(id);
      return node.is(ir::kScaledDot) || is_reduction(node);
    });
    return gains ? std::optional(best) : std::nullopt;
  }

 private:
  void start_at(ValueId value) {
    inside_.clear();
    open_ = {value};
  }

  std::vector<NodeId> taken() const {
    std::vector<NodeId> nodes;
    std::ranges::copy_if(graph_.order(), std::back_inserter(nodes),
                         [&](NodeId id) { return inside_.contains(id); });
    return nodes;
  }

  // The product behind the selection, through what works on single numbers.
  bool take_product() {
    start_at(picked_);
    while (open_.size() == 1) {
      const Node* node = graph_.producer(*open_.begin());
      if (node == nullptr) return false;
      const bool is_product = node->is(ir::kScaledDot) &&
                              has_free_rows(graph_, *node, ir::ScaledDot::from(*node)) &&
                              graph_.value(node->input(1)).is_constant();
      if (!is_product && !is_pointwise(*node)) return false;
      if (!expand(*open_.begin())) return false;
      if (is_product) return true;
    }
    return false;
  }

  // The value that is computed last, unless it is the result of an earlier product's epilogue.
  bool expand_last() {
    const auto last = std::ranges::max_element(
        open_, {}, [&](ValueId value) { return position(graph_.value(value).producer); });
    const Node* node = graph_.producer(*last);
    if (node == nullptr || (!is_pointwise(*node) && !is_reduction(*node))) return false;
    const bool ends_product = std::ranges::any_of(node->inputs, [&](ValueId input) {
      const Node* producer = input == kNoValue ? nullptr : graph_.producer(input);
      return producer != nullptr && producer->is(ir::kScaledDot);
    });
    return !ends_product && expand(*last);
  }

  // `value`'s producer joins, if all that read it did, and its rows stand open instead.
  bool expand(ValueId value) {
    const NodeId id = graph_.value(value).producer;
    const Node& node = graph_.node(id);
    const bool is_read_inside = std::ranges::all_of(graph_.consumers(value), [&](NodeId reader) {
      return reader == selection_ || inside_.contains(reader);
    });
    if (!is_read_inside || graph_.is_output(value) || node.outputs.size() != 1) return false;
    std::set<ValueId> rows;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      const bool is_weight = node.is(ir::kScaledDot) && i > 0;
      if (input == kNoValue || is_weight || is_shared(input)) continue;
      if (!has_rows(input)) return false;
      rows.insert(input);
    }
    inside_.insert(id);
    open_.erase(value);
    open_.insert(rows.begin(), rows.end());
    return true;
  }

  // The same for all rows, before and after they are picked.
  bool is_shared(ValueId value) const {
    const auto& shape = graph_.value(value).shape;
    if (!shape) return false;
    const size_t rank = graph_.value(graph_.node(selection_).output(0)).shape->size();
    return shape->empty() ||
           (shape->size() <= rank &&
            std::all_of(shape->begin(), shape->end() - 1, [](const Dim& d) { return d.is(1); }) &&
            !has_rows(value));
  }

  bool has_rows(ValueId value) const {
    const auto& shape = graph_.value(value).shape;
    return shape && !shape->empty() && leading(*shape) == leading(*graph_.value(picked_).shape);
  }

  static bool is_pointwise(const Node& node) {
    return ir::is_primitive(node.op, ir::PrimitiveClass::kPointwise) && !node.inputs.empty();
  }

  // Over the elements of a row.
  bool is_reduction(const Node& node) const {
    const auto last = static_cast<int64_t>(graph_.value(picked_).shape->size()) - 1;
    return ir::is_primitive(node.op, ir::PrimitiveClass::kReduction) &&
           node.integer("keepdims", 1) == 1 && node.integers("axes") == std::vector<int64_t>{last};
  }

  int64_t position(NodeId id) const {
    return std::ranges::find(graph_.order(), id) - graph_.order().begin();
  }

  const Graph& graph_;
  const NodeId selection_;
  const ValueId picked_;
  std::set<NodeId> inside_;
  std::set<ValueId> open_;
};

// A value like `old`, of other rows.
ValueId add_like(Graph& graph, ValueId old, Shape rows) {
  const ir::Value& like = graph.value(old);
  ir::Value value;
  value.name = like.name;
  value.dtype = like.dtype;
  rows.push_back(like.shape->back());
  value.shape = std::move(rows);
  return graph.add_value(std::move(value));
}

void move_up(Graph& graph, NodeId selection, const RowRegion::Found& found) {
  const Node node = graph.node(selection);
  const Shape rows = leading(*graph.value(node.output(0)).shape);
  std::map<ValueId, ValueId> picked;
  const auto write_picked = [&](Node next, ValueId old) {
    for (ValueId& input : next.inputs) {
      if (const auto known = picked.find(input); known != picked.end()) input = known->second;
    }
    if (next.has("axes")) next.attributes["axes"] = std::vector{static_cast<int64_t>(rows.size())};
    next.outputs = {picked[old] = add_like(graph, old, rows)};
    graph.insert_before(selection, std::move(next));
  };
  Node first = node;
  first.inputs[0] = found.rows;
  write_picked(first, found.rows);
  for (const NodeId id : found.nodes) write_picked(graph.node(id), graph.node(id).output(0));
  graph.replace_uses(node.output(0), picked.at(node.input(0)));
}

}  // namespace

void select_rows(Graph& graph) {
  graph.remove_dead_nodes();
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!picks_rows(graph, graph.node(id))) continue;
    if (const auto found = RowRegion(graph, id).find()) move_up(graph, id, *found);
  }
  graph.remove_dead_nodes();
}

}  // namespace tenon
