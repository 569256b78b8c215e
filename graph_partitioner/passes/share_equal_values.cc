#include "graph_partitioner/passes/share_equal_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/region.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr size_t kSmallConstant = 64;

struct AttributeText {
  std::string operator()(const ir::TensorPtr& tensor) const {
    return fmt::format("{}", static_cast<const void*>(tensor.get()));
  }
  template <typename T>
  std::string operator()(const T& value) const {
    return fmt::format("{}", value);
  }
};

// Two values of the same number hold the same elements.
class ValueNumbers {
 public:
  explicit ValueNumbers(const Graph& graph) : graph_(graph), numbers_(graph.value_count(), -1) {
    for (const NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      const bool pure = ir::find_primitive(node.op) != nullptr && node.outputs.size() == 1;
      if (pure) numbers_[node.output(0)] = number_of(key(node));
    }
  }

  int of(ValueId id) {
    if (numbers_[id] < 0) numbers_[id] = number_of(leaf_key(id));
    return numbers_[id];
  }

 private:
  int number_of(const std::string& key) {
    return by_key_.emplace(key, static_cast<int>(by_key_.size())).first->second;
  }

  std::string key(const Node& node) {
    std::string result = node.op;
    for (const auto& [name, attribute] : node.attributes) {
      result += fmt::format("|{}={}", name, std::visit(AttributeText{}, attribute));
    }
    for (const ValueId input : node.inputs) {
      result += fmt::format("|{}", input == kNoValue ? -1 : of(input));
    }
    const ir::Value& output = graph_.value(node.output(0));
    return fmt::format("{}|{}{}", result, name(output.dtype),
                       output.shape ? text(*output.shape) : "[*]");
  }

  // Small constants by what they hold, larger ones by where they lie; all else is itself alone.
  std::string leaf_key(ValueId id) const {
    const ir::Value& value = graph_.value(id);
    if (!value.is_constant()) return fmt::format("value {}", id);
    const ir::Tensor& tensor = *value.constant;
    const std::string type = fmt::format("{}{}", name(tensor.dtype), text(*value.shape));
    if (tensor.bytes > kSmallConstant) {
      return fmt::format("constant {} {}", type, static_cast<const void*>(tensor.data));
    }
    return fmt::format("constant {} {}", type,
                       std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes));
  }

  const Graph& graph_;
  std::vector<int> numbers_;
  std::unordered_map<std::string, int> by_key_;
};

bool goes_to_memory(const Graph& graph, const Uses& uses, const Node& node) {
  if (ir::find_primitive(node.op)->expensive || node.is("Gather")) return true;
  const auto& users = uses.of(node.output(0));
  return std::any_of(users.begin(), users.end(), [&](NodeId user) {
    return ir::find_primitive(graph.node(user).op) == nullptr;
  });
}

// Twins that nobody reads any more, and what led to them, live on in the sources of those that
// stay.
void hand_on_sources(Graph& graph, ValueNumbers& numbers,
                     const std::unordered_map<int, NodeId>& first) {
  const std::vector<NodeId> before = graph.order();
  std::vector<int> of_node;
  for (const NodeId id : before) {
    const Node& node = graph.node(id);
    const bool numbered = ir::find_primitive(node.op) != nullptr && node.outputs.size() == 1;
    of_node.push_back(numbered ? numbers.of(node.output(0)) : -1);
  }
  graph.remove_dead_nodes();
  size_t next = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (next < graph.order().size() && graph.order()[next] == before[i]) {
      ++next;
    } else if (of_node[i] >= 0) {
      Node& kept = graph.node(first.at(of_node[i]));
      kept.sources = ir::merge_sources(kept.sources, graph.node(before[i]).sources);
    }
  }
}

}  // namespace

void share_equal_values(Graph& graph) {
  graph.remove_dead_nodes();
  ValueNumbers numbers(graph);
  const Uses uses(graph);
  std::unordered_map<int, NodeId> first;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (ir::find_primitive(node.op) == nullptr || node.outputs.size() != 1) continue;
    const auto [found, is_first] = first.emplace(numbers.of(node.output(0)), id);
    // A graph output keeps a producer of its own.
    if (is_first || graph.is_output(node.output(0)) || !goes_to_memory(graph, uses, node)) continue;
    graph.replace_uses(node.output(0), graph.node(found->second).output(0));
  }
  hand_on_sources(graph, numbers, first);
}

}  // namespace tenon
