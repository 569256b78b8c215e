#include "graph_partitioner/ir/extract.h"

#include <algorithm>
#include <unordered_map>

namespace tenon::ir {
namespace {

class Extraction {
 public:
  Extraction(const Graph& graph, const std::vector<int>& sources)
      : graph_(graph), sources_(sources), inside_(graph.value_count(), 0) {}

  Graph run() {
    part_.name = graph_.name;
    std::vector<NodeId> chosen;
    for (NodeId id : graph_.order()) {
      if (is_chosen(graph_.node(id))) chosen.push_back(id);
    }
    for (NodeId id : chosen) {
      for (ValueId output : graph_.node(id).outputs) {
        if (output != kNoValue) inside_[output] = 1;
      }
    }
    for (NodeId id : chosen) copy(graph_.node(id));
    for (ValueId output : outputs()) part_.add_output(local_.at(output));
    return std::move(part_);
  }

 private:
  bool is_chosen(const Node& node) const {
    return std::any_of(node.sources.begin(), node.sources.end(), [&](int source) {
      return std::binary_search(sources_.begin(), sources_.end(), source);
    });
  }

  void copy(const Node& node) {
    Node copied = node;
    for (ValueId& input : copied.inputs) input = localize(input);
    for (ValueId& output : copied.outputs) output = localize(output);
    part_.add_node(std::move(copied));
  }

  ValueId localize(ValueId id) {
    if (id == kNoValue) return kNoValue;
    const auto known = local_.find(id);
    if (known != local_.end()) return known->second;
    Value value = graph_.value(id);
    value.producer = kNoNode;
    const bool from_outside = !inside_[id] && !value.is_constant();
    // What was known of its elements was learnt outside: the cut graph has only the tensor.
    if (from_outside) value.elements.reset();
    const ValueId local =
        from_outside ? part_.add_input(std::move(value)) : part_.add_value(std::move(value));
    local_.emplace(id, local);
    return local;
  }

  // In the order in which they are written.
  std::vector<ValueId> outputs() const {
    std::vector<char> used(graph_.value_count(), 0);
    for (ValueId output : graph_.outputs()) used[output] = 1;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      if (is_chosen(node)) continue;
      for (ValueId input : node.inputs) {
        if (input != kNoValue) used[input] = 1;
      }
    }
    std::vector<ValueId> result;
    for (NodeId id : graph_.order()) {
      if (!is_chosen(graph_.node(id))) continue;
      for (ValueId output : graph_.node(id).outputs) {
        if (output != kNoValue && used[output]) result.push_back(output);
      }
    }
    return result;
  }

  const Graph& graph_;
  const std::vector<int>& sources_;
  std::vector<char> inside_;
  std::unordered_map<ValueId, ValueId> local_;
  Graph part_;
};

}  // namespace

Graph extract(const Graph& graph, const std::vector<int>& sources) {
  std::vector<int> sorted = sources;
  std::sort(sorted.begin(), sorted.end());
  return Extraction(graph, sorted).run();
}

}  // namespace tenon::ir
