#include "graph_partitioner/passes/hoist_movement.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/move.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::PrimitiveClass;
using ir::ValueId;

constexpr int kMostNodes = 48;

bool is_pointwise(const Node* node) {
  return node != nullptr && node->outputs.size() == 1 &&
         ir::is_primitive(node->op, PrimitiveClass::kPointwise);
}

bool is_movement(const Node* node) {
  return node != nullptr && ir::is_primitive(node->op, PrimitiveClass::kMovement);
}

bool is_reduction(const Node* node) {
  return node != nullptr && ir::is_primitive(node->op, PrimitiveClass::kReduction);
}

class Hoister {
 public:
  Hoister(Graph& graph, NodeId id) : graph_(graph), id_(id), mover_(graph.node(id)) {}

  bool run() {
    const ValueId data = mover_.input(0);
    const auto move = Move::of(graph_, mover_);
    if (!move || !is_pointwise(graph_.producer(data)) || !can_hoist(data, *move)) return false;
    const ValueId result = hoist(data, *move);
    graph_.replace_uses(mover_.output(0), result);
    return true;
  }

 private:
  bool can_hoist(ValueId value, const Move& move) {
    const Node* producer = graph_.producer(value);
    if (++visited_ > kMostNodes || is_reduction(producer)) return false;
    if (is_movement(producer) && !producer->is("Reshape")) {
      return move.kind != Move::Kind::kReshape && is_loaded(value);
    }
    if (!is_pointwise(producer)) return true;
    if (producer->inputs.empty() || !may_copy(*producer, value, move)) return false;
    Shape moved;
    for (const ValueId operand : producer->inputs) {
      const auto adapted = adapt_to(move, value, operand);
      if (!adapted || (!adapted->is_none() && !can_hoist(operand, *adapted))) return false;
      const Shape own = adapted->is_none() ? *graph_.value(operand).shape : adapted->result;
      const auto wider = broadcast_shapes(moved, own);
      if (!wider) return false;
      moved = *wider;
    }
    return moved == move.result;
  }

  // A chain of movement ops that starts at something in memory.
  bool is_loaded(ValueId value) const {
    const Node* producer = graph_.producer(value);
    while (is_movement(producer)) {
      value = producer->input(0);
      producer = graph_.producer(value);
    }
    return !is_pointwise(producer) && !is_reduction(producer);
  }

  // Another reader keeps the original: worth it only where few elements are picked of many.
  bool may_copy(const Node& producer, ValueId value, const Move& move) const {
    const bool cheap = !ir::find_primitive(producer.op)->expensive;
    if (move.repeats_elements() && !cheap) return false;
    return graph_.has_one_use(value) || (cheap && move.kind == Move::Kind::kGather);
  }

  std::optional<Move> adapt_to(const Move& move, ValueId value, ValueId operand) const {
    if (operand == kNoValue || !graph_.value(operand).shape || !graph_.value(value).shape) {
      return std::nullopt;
    }
    return move.adapt(*graph_.value(value).shape, *graph_.value(operand).shape);
  }

  ValueId hoist(ValueId value, const Move& move) {
    if (move.is_none()) return value;
    const Node* producer = graph_.producer(value);
    if (!is_pointwise(producer)) return place_once(value, move);
    Node copy = *producer;
    for (ValueId& operand : copy.inputs) {
      const Move adapted = *adapt_to(move, value, operand);
      operand = hoist(operand, adapted);
    }
    copy.sources = ir::merge_sources(copy.sources, mover_.sources);
    return insert(std::move(copy), value, move.result);
  }

  // Where(x < 0, x * slope, x) reads x three times.
  ValueId place_once(ValueId value, const Move& move) {
    const auto found = std::ranges::find_if(
        placed_, [&](const Placed& one) { return one.value == value && one.move == move; });
    if (found != placed_.end()) return found->result;
    placed_.push_back({value, move, place(value, move)});
    return placed_.back().result;
  }

  ValueId place(ValueId value, const Move& move) {
    const ir::TensorPtr constant = graph_.value(value).constant;
    if (graph_.value(value).is_constant() && move.kind == Move::Kind::kReshape &&
        is_static(move.result)) {
      ir::Tensor seen = *constant;
      seen.dims = static_dims(move.result);
      return graph_.add_constant(graph_.value(value).name,
                                 std::make_shared<const ir::Tensor>(std::move(seen)));
    }
    Node node = move.node(value);
    node.name = mover_.name;
    node.sources = mover_.sources;
    return insert(std::move(node), value, move.result);
  }

  ValueId insert(Node node, ValueId like, const Shape& shape) {
    ir::Value value;
    value.name = graph_.value(like).name;
    value.dtype = graph_.value(like).dtype;
    value.shape = shape;
    const ValueId result = graph_.add_value(std::move(value));
    node.outputs = {result};
    graph_.insert_before(id_, std::move(node));
    return result;
  }

  Graph& graph_;
  NodeId id_;
  Node mover_;
  int visited_ = 0;
  struct Placed {
    ValueId value;
    Move move;
    ValueId result;
  };
  std::vector<Placed> placed_;
};

bool is_view(const Node* node) {
  return node != nullptr && node->is("Reshape") && node->inputs.size() == 1;
}

// Reshape(Reshape(x)) reads x; a Reshape to the shape that x has is x.
bool shorten_view(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  const Node* before = graph.producer(node.input(0));
  bool changed = false;
  if (is_view(before)) {
    node.sources = ir::merge_sources(node.sources, before->sources);
    node.inputs = {before->input(0)};
    changed = true;
  }
  const ValueId from = node.input(0), to = node.output(0);
  const bool same = graph.value(from).shape && graph.value(from).shape == graph.value(to).shape;
  if (!same || graph.is_output(to)) return changed;
  hand_to_readers(graph, to, node.sources);
  graph.replace_uses(to, from);
  return true;
}

// A view is free where it stands; it is hoisted only to join the arithmetic on both of its sides.
bool feeds_arithmetic(const Graph& graph, ValueId value) {
  const std::vector<NodeId> users = graph.consumers(value);
  return !users.empty() && !graph.is_output(value) &&
         std::all_of(users.begin(), users.end(), [&](NodeId user) {
           return ir::find_primitive(graph.node(user).op) != nullptr && !is_view(&graph.node(user));
         });
}

bool visit(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (is_view(&node)) {
    if (shorten_view(graph, id)) return true;
    if (!feeds_arithmetic(graph, node.output(0))) return false;
  }
  return is_movement(&node) && Hoister(graph, id).run();
}

}  // namespace

void hoist_movement(Graph& graph) {
  graph.remove_dead_nodes();
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (visit(graph, id)) graph.remove_dead_nodes();
  }
}

}  // namespace tenon
