#include "graph_partitioner/passes/fuse_convolutions.h"

#include <vector>

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoNode;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr size_t kSummand = 3;

// A convolution with what was taken into it so far; its result is what `last` writes.
struct Fused {
  Node node;
  NodeId last = kNoNode;
};

class Fuser {
 public:
  Fuser(Graph& graph, const SupportsFn& supports) : graph_(graph), supports_(supports) {}

  void run() {
    for (const NodeId id : std::vector<NodeId>(graph_.order())) {
      if (graph_.node(id).is("Conv")) fuse(id);
    }
  }

 private:
  // The only reader of the result so far, if it is this op.
  const Node* reader(const Fused& fused, std::string_view op, NodeId& id) const {
    const ValueId result = fused.node.output(0);
    if (!graph_.has_one_use(result)) return nullptr;
    id = graph_.consumers(result).front();
    return graph_.node(id).is(op) ? &graph_.node(id) : nullptr;
  }

  static void take(Fused& fused, const Node& node, NodeId id) {
    fused.node.sources = ir::merge_sources(fused.node.sources, node.sources);
    fused.node.outputs = node.outputs;
    fused.last = id;
  }

  bool take_summand(Fused& fused) const {
    NodeId id = kNoNode;
    const Node* add = reader(fused, "Add", id);
    if (add == nullptr) return false;
    const ValueId result = fused.node.output(0);
    const ValueId other = add->input(add->input(0) == result ? 1 : 0);
    const auto& shape = graph_.value(other).shape;
    if (!shape || shape != graph_.value(result).shape) return false;
    fused.node.inputs.resize(kSummand, kNoValue);
    fused.node.inputs.push_back(other);
    take(fused, *add, id);
    return true;
  }

  bool take_relu(Fused& fused) const {
    NodeId id = kNoNode;
    const Node* relu = reader(fused, "Relu", id);
    if (relu == nullptr) return false;
    fused.node.attributes["activation"] = std::string("Relu");
    take(fused, *relu, id);
    return true;
  }

  void fuse(NodeId id) {
    Fused plain{graph_.node(id), id};
    plain.node.op = "com.microsoft::FusedConv";
    plain.node.since_version = 1;
    std::vector<Fused> wishes;  // smallest first
    Fused cut = plain;
    if (take_relu(cut)) wishes.push_back(cut);
    Fused summed = plain;
    if (take_summand(summed)) {
      wishes.push_back(summed);
      if (take_relu(summed)) wishes.push_back(summed);
    }
    while (!wishes.empty()) {
      if (supports_(graph_, wishes.back().node)) return replace(std::move(wishes.back()));
      wishes.pop_back();
    }
  }

  void replace(Fused fused) {
    const ValueId old = fused.node.output(0);
    ir::Value result = graph_.value(old);
    result.producer = kNoNode;
    const ValueId made = graph_.add_value(std::move(result));
    fused.node.outputs = {made};
    graph_.insert_before(fused.last, std::move(fused.node));
    graph_.replace_uses(old, made);
    graph_.remove_dead_nodes();
  }

  Graph& graph_;
  const SupportsFn& supports_;
};

}  // namespace

void fuse_convolutions(Graph& graph, const SupportsFn& supports) { Fuser(graph, supports).run(); }

}  // namespace tenon
