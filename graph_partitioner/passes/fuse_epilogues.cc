#include "graph_partitioner/passes/fuse_epilogues.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// An epilogue runs in the registers that the dot leaves free.
constexpr size_t kMostNodes = 32;
constexpr size_t kMostOperands = 6;

bool has_epilogue_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kBool;
}

// A number in more bytes than it has bits for: whoever reads it can make it from fewer.
bool widens(const Graph& graph, const Node* node) {
  if (node == nullptr || !node->is("Cast")) return false;
  const DType from = graph.value(node->input(0)).dtype, to = graph.value(node->output(0)).dtype;
  return has_epilogue_type(from) && from != DType::kBool && is_floating(to) &&
         bit_width(from) < bit_width(to);
}

// Codes of a rounding that the epilogue itself brings back to numbers.
bool stays_inside(DType dtype) {
  return has_epilogue_type(dtype) || is_small_float(dtype) || dtype == DType::kI8 ||
         dtype == DType::kU8;
}

class Epilogue {
 public:
  Epilogue(const Graph& graph, NodeId dot)
      : graph_(graph), uses_(graph), dot_(dot), result_(graph.node(dot).output(0)) {
    find_descendants();
  }

  // Nodes to take in, in topological order, and the one value that leaves them.
  struct Region {
    std::vector<NodeId> nodes;
    ValueId output = kNoValue;
  };

  Region find() {
    Region best;
    if (uses_.is_output(result_)) return best;
    std::set<ValueId> inside{result_};
    std::vector<NodeId> nodes;
    for (const NodeId id : graph_.order()) {
      if (nodes.size() == kMostNodes) break;
      if (!is_descendant_[id] || !fits(graph_.node(id), inside)) continue;
      nodes.push_back(id);
      inside.insert(graph_.node(id).output(0));
      const std::vector<ValueId> leaving = escaping(nodes);
      const bool is_result = leaving.size() == 1 && has_epilogue_type(dtype(leaving[0])) &&
                             !is_left_to_readers(leaving[0]);
      if (is_result && operands(nodes) <= kMostOperands) best = {nodes, leaving[0]};
    }
    while (take_operand(best)) continue;
    return best;
  }

 private:
  DType dtype(ValueId id) const { return graph_.value(id).dtype; }

  // Loops and epilogues that read it make it themselves.
  bool is_left_to_readers(ValueId value) const {
    return widens(graph_, graph_.producer(value)) && !uses_.is_output(value) &&
           std::ranges::all_of(uses_.of(value), [&](NodeId user) {
             const std::string& op = graph_.node(user).op;
             return ir::is_primitive(op, ir::PrimitiveClass::kPointwise) ||
                    ir::is_primitive(op, ir::PrimitiveClass::kReduction);
           });
  }

  // What is computed for the region alone (a residual that is rounded first) is computed there.
  bool take_operand(Region& region) const {
    if (region.nodes.size() >= kMostNodes) return false;
    for (const NodeId reader : region.nodes) {
      for (const ValueId operand : graph_.node(reader).inputs) {
        if (operand == kNoValue || !is_computed_for(operand, region.nodes)) continue;
        std::vector<NodeId> nodes = region.nodes;
        nodes.insert(nodes.begin(), graph_.value(operand).producer);
        if (operands(nodes) > kMostOperands) continue;
        region.nodes = std::move(nodes);
        return true;
      }
    }
    return false;
  }

  bool is_computed_for(ValueId operand, const std::vector<NodeId>& nodes) const {
    const NodeId producer = graph_.value(operand).producer;
    const auto taken = [&](NodeId id) { return std::ranges::find(nodes, id) != nodes.end(); };
    if (producer == ir::kNoNode || producer == dot_ || taken(producer) ||
        uses_.is_output(operand) || !std::ranges::all_of(uses_.of(operand), taken)) {
      return false;
    }
    const Node& node = graph_.node(producer);
    return ir::is_primitive(node.op, ir::PrimitiveClass::kPointwise) &&
           graph_.value(operand).shape == graph_.value(result_).shape &&
           std::ranges::all_of(node.inputs, [&](ValueId input) {
             return input != kNoValue && is_ready(input) && !is_epilogue_of_another(input);
           });
  }

  // A dot that has no body yet takes what follows it itself.
  bool is_epilogue_of_another(ValueId operand) const {
    std::set<ValueId> seen;
    std::vector<ValueId> open{operand};
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      const Node* producer = value == kNoValue ? nullptr : graph_.producer(value);
      if (producer == nullptr || !seen.insert(value).second) continue;
      if (producer->is(ir::kScaledDot) && !producer->body) return true;
      if (!ir::is_primitive(producer->op, ir::PrimitiveClass::kPointwise)) continue;
      open.insert(open.end(), producer->inputs.begin(), producer->inputs.end());
    }
    return false;
  }

  void find_descendants() {
    is_descendant_.assign(graph_.node_count(), 0);
    std::vector<NodeId> open{dot_};
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      for (const ValueId output : graph_.node(id).outputs) {
        if (output == kNoValue) continue;
        for (const NodeId user : uses_.of(output)) {
          if (!std::exchange(is_descendant_[user], 1)) open.push_back(user);
        }
      }
    }
  }

  bool fits(const Node& node, const std::set<ValueId>& inside) const {
    if (!ir::is_primitive(node.op, ir::PrimitiveClass::kPointwise)) return false;
    const ir::Value& output = graph_.value(node.output(0));
    if (!stays_inside(output.dtype) || output.shape != graph_.value(result_).shape) return false;
    bool follows = false;
    for (const ValueId operand : node.inputs) {
      if (inside.contains(operand)) {
        follows = true;
      } else if (operand == kNoValue || !is_ready(operand)) {
        return false;
      }
    }
    return follows;
  }

  // Available before the dot runs, and readable beside its result.
  bool is_ready(ValueId operand) const {
    const ir::Value& value = graph_.value(operand);
    if (!has_epilogue_type(value.dtype) || !value.shape || !is_aligned(*value.shape)) return false;
    return value.producer == ir::kNoNode || !is_descendant_[value.producer];
  }

  // Every dim is the result's own or 1.
  bool is_aligned(const Shape& operand) const {
    const Shape& whole = *graph_.value(result_).shape;
    if (operand.size() > whole.size()) return false;
    for (size_t i = 1; i <= operand.size(); ++i) {
      const Dim& dim = operand[operand.size() - i];
      if (!dim.is(1) && !(dim == whole[whole.size() - i])) return false;
    }
    return true;
  }

  std::vector<ValueId> escaping(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> written{result_};
    for (const NodeId id : nodes) written.push_back(graph_.node(id).output(0));
    std::vector<ValueId> result;
    for (const ValueId value : written) {
      const auto& users = uses_.of(value);
      const bool leaves = std::any_of(users.begin(), users.end(), [&](NodeId user) {
        return std::find(nodes.begin(), nodes.end(), user) == nodes.end();
      });
      if (leaves || uses_.is_output(value)) result.push_back(value);
    }
    return result;
  }

  size_t operands(const std::vector<NodeId>& nodes) const {
    std::set<ValueId> outside;
    std::set<NodeId> inside(nodes.begin(), nodes.end());
    for (const NodeId id : nodes) {
      for (const ValueId operand : graph_.node(id).inputs) {
        const ir::Value& value = graph_.value(operand);
        const bool scalar = value.is_constant() && value.constant->elements() == 1;
        if (operand != result_ && !inside.contains(value.producer) && !scalar) {
          outside.insert(operand);
        }
      }
    }
    return outside.size();
  }

  const Graph& graph_;
  Uses uses_;
  NodeId dot_;
  ValueId result_;
  std::vector<char> is_descendant_;  // by node
};

// The vector that a first Add of [N] (or [1, …, N]) brings, kNoValue when it is something else.
ValueId bias_operand(const Graph& graph, const Node& add, ValueId result) {
  if (!add.is("Add")) return kNoValue;
  const ValueId bias = add.input(0) == result ? add.input(1) : add.input(0);
  const ir::Value& value = graph.value(bias);
  const Shape& shape = *graph.value(result).shape;
  if (bias == result || !value.is_constant() || value.dtype != graph.value(result).dtype ||
      value.shape->empty() || shape.empty() || !(value.shape->back() == shape.back())) {
    return kNoValue;
  }
  const bool vector = std::all_of(value.shape->begin(), value.shape->end() - 1,
                                  [](const Dim& dim) { return dim.is(1); });
  return vector ? bias : kNoValue;
}

// Add(dot, constant [N]) with no other reader of the dot becomes the dot's own bias.
bool take_bias(Graph& graph, NodeId id) {
  const ValueId result = graph.node(id).output(0);
  if (graph.node(id).body || graph.node(id).outputs.size() != 1 || !graph.has_one_use(result)) {
    return false;
  }
  ir::ScaledDot dot = ir::ScaledDot::from(graph.node(id));
  const NodeId user = graph.consumers(result).front();
  if (dot.bias != kNoValue || !graph.value(result).shape) return false;
  const Node add = graph.node(user);
  ValueId bias = bias_operand(graph, add, result);
  if (bias == kNoValue || graph.value(add.output(0)).shape != graph.value(result).shape) {
    return false;
  }
  const ir::TensorPtr tensor = graph.value(bias).constant;
  if (tensor->dims.size() > 1) {
    ir::Tensor flat = *tensor;
    flat.dims = {tensor->dims.back()};
    bias = graph.add_constant(graph.value(bias).name,
                              std::make_shared<const ir::Tensor>(std::move(flat)));
  }
  dot.bias = bias;
  Node fused = graph.node(id);
  dot.write_to(fused);
  fused.outputs = add.outputs;
  fused.sources = ir::merge_sources(fused.sources, add.sources);
  replace_nodes(graph, {id, user}, std::move(fused));
  return true;
}

// Wider numbers that a region reads beside others are made for it alone. Whether there were any.
bool copy_wider_operands(Graph& graph, const Epilogue::Region& region) {
  const auto inside = [&](NodeId id) {
    return std::ranges::find(region.nodes, id) != region.nodes.end();
  };
  bool copied = false;
  for (const NodeId reader : region.nodes) {
    for (size_t i = 0; i < graph.node(reader).inputs.size(); ++i) {
      const ValueId operand = graph.node(reader).inputs[i];
      const Node* maker = operand == kNoValue ? nullptr : graph.producer(operand);
      if (!widens(graph, maker) || inside(graph.value(operand).producer)) continue;
      const bool has_others = !std::ranges::all_of(graph.consumers(operand), inside);
      if (!has_others && !graph.is_output(operand)) continue;
      Node copy = *maker;
      const ValueId own = graph.add_value(graph.value(operand));
      copy.outputs = {own};
      graph.insert_before(reader, std::move(copy));
      graph.node(reader).inputs[i] = own;
      copied = true;
    }
  }
  return copied;
}

bool take_region(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  if (node.body || node.outputs.size() != 1 || !graph.value(node.output(0)).shape) return false;
  Epilogue::Region region = Epilogue(graph, id).find();
  if (copy_wider_operands(graph, region)) region = Epilogue(graph, id).find();
  if (region.nodes.empty()) return false;
  Outlined outlined = outline(graph, region.nodes, {node.output(0)}, {region.output});
  ir::ScaledDot dot = ir::ScaledDot::from(node);
  if (dot.result == DType::kUndefined) dot.result = graph.value(node.output(0)).dtype;
  dot.extra.assign(outlined.inputs.begin() + 1, outlined.inputs.end());
  Node fused = node;
  dot.write_to(fused);
  fused.outputs = {region.output};
  fused.sources = ir::merge_sources(fused.sources, outlined.sources);
  fused.body = std::move(outlined.body);
  std::vector<NodeId> replaced{id};
  replaced.insert(replaced.end(), region.nodes.begin(), region.nodes.end());
  replace_nodes(graph, replaced, std::move(fused));
  return true;
}

template <typename Fn>
void for_each_dot(Graph& graph, Fn&& fuse) {
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!graph.node(id).is(ir::kScaledDot) || !fuse(graph, id)) continue;
    graph.remove_dead_nodes();
    graph.sort_topologically();
  }
}

}  // namespace

void fuse_epilogues(Graph& graph) {
  graph.remove_dead_nodes();
  for_each_dot(graph, take_bias);
  for_each_dot(graph, take_region);
}

}  // namespace tenon
