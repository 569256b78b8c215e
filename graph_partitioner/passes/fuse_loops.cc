#include "graph_partitioner/passes/fuse_loops.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/region.h"
#include "graph_partitioner/tiling/index_map.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::PrimitiveClass;
using ir::ValueId;

// Larger bodies run out of registers and take long to compile.
constexpr size_t kMostNodes = 96;
constexpr size_t kMostInputs = 24;
constexpr size_t kMostOutputs = 8;
// A loop that reduces everything runs on one thread: up to this size that is no loss.
constexpr int64_t kSerialElements = 16384;

bool can_compute(DType dtype) { return dtype != DType::kUndefined && dtype != DType::kString; }

// Views stay outside of loops: they cost nothing there.
bool is_candidate(const Graph& graph, const Node& node) {
  const ir::Primitive* primitive = ir::find_primitive(node.op);
  if (primitive == nullptr || node.is("Reshape")) return false;
  if (primitive->inputs >= 0 && static_cast<int>(node.inputs.size()) != primitive->inputs) {
    return false;
  }
  const auto computable = [&](ValueId id) {
    return id != kNoValue && can_compute(graph.value(id).dtype) && graph.value(id).shape;
  };
  return std::all_of(node.inputs.begin(), node.inputs.end(), computable) &&
         std::all_of(node.outputs.begin(), node.outputs.end(), computable);
}

Dim product_of(const Shape& shape, const std::vector<int>& axes, bool of_named) {
  Dim result = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool named = std::binary_search(axes.begin(), axes.end(), static_cast<int>(axis));
    if (named == of_named) result = result * shape[axis];
  }
  return result;
}

// An expensive op runs at every point of the domain, but for the reduced axes.
bool repeats_expensive_work(const Graph& body, const tiling::LoopTiling& loop) {
  for (const NodeId id : loop.region) {
    const Node& node = body.node(id);
    const ir::Primitive* primitive = ir::find_primitive(node.op);
    if (!primitive->expensive) continue;
    const Shape& shape = *body.value(node.output(0)).shape;
    for (size_t axis = 0; axis < loop.domain.size(); ++axis) {
      if (std::binary_search(loop.reduced_axes.begin(), loop.reduced_axes.end(),
                             static_cast<int>(axis))) {
        continue;
      }
      const size_t missing = loop.domain.size() - shape.size();
      const Dim own = axis < missing ? Dim(1) : shape[axis - missing];
      if (!(own == loop.domain[axis])) return true;
    }
  }
  return false;
}

// Everything is reduced and something as large as the domain is written after that.
bool serializes_a_large_loop(const tiling::LoopTiling& loop) {
  if (loop.reduced_axes.empty()) return false;
  if (!product_of(loop.domain, loop.reduced_axes, false).is(1)) return false;
  const Dim size = product_of(loop.domain, loop.reduced_axes, true);
  if (size.is_constant() && size.value() <= kSerialElements) return false;
  const auto is_full = [](const tiling::Store& store) {
    return std::any_of(store.strides.begin(), store.strides.end(),
                       [](const Dim& stride) { return !stride.is(0); });
  };
  return std::any_of(loop.stores.begin(), loop.stores.end(), is_full);
}

class Clusters {
 public:
  explicit Clusters(const Graph& graph) : graph_(graph), uses_(graph) {
    size_t position = 0;
    for (const NodeId id : graph.order()) {
      if (id >= static_cast<NodeId>(cluster_.size())) cluster_.resize(id + 1, -1);
      if (id >= static_cast<NodeId>(position_.size())) position_.resize(id + 1, 0);
      position_[id] = position++;
      cluster_[id] = static_cast<int>(members_.size());
      members_.push_back({id});
      refused_.emplace_back();
      legal_.push_back(is_candidate(graph, graph.node(id)) && is_loop({id}));
    }
  }

  void grow() {
    for (const NodeId id : graph_.order()) {
      if (!legal_[cluster_[id]]) continue;
      for (const ValueId operand : nearest_first(graph_.node(id).inputs)) {
        const NodeId producer = graph_.value(operand).producer;
        if (!try_merge(cluster_[producer], cluster_[id])) keep_for_later(producer, cluster_[id]);
      }
      take_what_only_it_reads(cluster_[id]);
    }
  }

  // Legal clusters with their escaping values.
  template <typename Fn>
  void for_each_loop(Fn&& fn) const {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (legal_[i] && !members_[i].empty()) fn(members_[i], escaping(members_[i]));
    }
  }

 private:
  // Produced operands, the latest producer first: a softmax joins its sum before its exponential.
  std::vector<ValueId> nearest_first(const std::vector<ValueId>& operands) const {
    std::vector<ValueId> produced;
    for (const ValueId id : operands) {
      if (graph_.producer(id) != nullptr) produced.push_back(id);
    }
    std::stable_sort(produced.begin(), produced.end(), [&](ValueId a, ValueId b) {
      return position_[graph_.value(a).producer] > position_[graph_.value(b).producer];
    });
    return produced;
  }

  // A producer whose result leaves the joint loop in a form of its own is refused while others read
  // it. These may all have joined later: four corners of a pixel share two rows.
  void keep_for_later(NodeId producer, int into) {
    if (legal_[cluster_[producer]]) refused_[into].push_back(producer);
  }

  void take_what_only_it_reads(int into) {
    for (bool joined = true; joined;) {
      joined = false;
      for (const NodeId producer : std::exchange(refused_[into], {})) {
        const int from = cluster_[producer];
        if (from == into) continue;
        const bool joins = is_read_only_by(from, into) && try_merge(from, into);
        if (!joins) refused_[into].push_back(producer);
        joined = joined || joins;
      }
    }
  }

  bool is_read_only_by(int from, int into) const {
    return std::ranges::all_of(members_[from], [&](NodeId id) {
      return std::ranges::all_of(graph_.node(id).outputs, [&](ValueId output) {
        if (output == kNoValue) return true;
        return !uses_.is_output(output) && std::ranges::all_of(uses_.of(output), [&](NodeId user) {
          return cluster_[user] == from || cluster_[user] == into;
        });
      });
    });
  }

  // Whether the two are one now.
  bool try_merge(int from, int into) {
    if (from == into) return true;
    if (!legal_[from]) return false;
    if (members_[from].size() + members_[into].size() > kMostNodes) return false;
    if (has_path_around(from, into)) return false;
    std::vector<NodeId> joint;
    std::merge(members_[from].begin(), members_[from].end(), members_[into].begin(),
               members_[into].end(), std::back_inserter(joint),
               [&](NodeId a, NodeId b) { return position_[a] < position_[b]; });
    if (!is_loop(joint)) return false;
    for (const NodeId id : members_[from]) cluster_[id] = into;
    members_[from].clear();
    members_[into] = std::move(joint);
    std::ranges::move(refused_[from], std::back_inserter(refused_[into]));
    refused_[from].clear();
    return true;
  }

  // A node outside of both on a path between them would both need and feed the joint loop.
  bool has_path_around(int from, int into) const {
    std::vector<char> seen(members_.size(), 0);
    seen[from] = seen[into] = 1;
    std::vector<int> open;
    const auto visit_successors = [&](int cluster) {
      for (const NodeId id : members_[cluster]) {
        for (const ValueId output : graph_.node(id).outputs) {
          if (output == kNoValue) continue;
          for (const NodeId user : uses_.of(output)) {
            if (cluster_[user] == into && cluster != from) return true;
            if (!std::exchange(seen[cluster_[user]], 1)) open.push_back(cluster_[user]);
          }
        }
      }
      return false;
    };
    visit_successors(from);
    while (!open.empty()) {
      const int next = open.back();
      open.pop_back();
      if (visit_successors(next)) return true;
    }
    return false;
  }

  std::vector<ValueId> escaping(const std::vector<NodeId>& nodes) const {
    const std::set<NodeId> inside(nodes.begin(), nodes.end());
    std::vector<ValueId> result;
    for (const NodeId id : nodes) {
      for (const ValueId output : graph_.node(id).outputs) {
        if (output == kNoValue) continue;
        const auto& users = uses_.of(output);
        const bool leaves = std::any_of(users.begin(), users.end(),
                                        [&](NodeId user) { return !inside.contains(user); });
        if (leaves || uses_.is_output(output)) result.push_back(output);
      }
    }
    return result;
  }

  bool is_loop(const std::vector<NodeId>& nodes) const {
    const std::vector<ValueId> outputs = escaping(nodes);
    if (outputs.empty() || outputs.size() > kMostOutputs) return false;
    const Outlined candidate = outline(graph_, nodes, {}, outputs);
    if (candidate.inputs.size() > kMostInputs) return false;
    const tiling::LoopTiling loop = tiling::analyze(*candidate.body);
    if (!loop.support) return false;
    return nodes.size() == 1 ||
           (!repeats_expensive_work(*candidate.body, loop) && !serializes_a_large_loop(loop));
  }

  const Graph& graph_;
  Uses uses_;
  std::vector<int> cluster_;                  // by node
  std::vector<size_t> position_;              // by node
  std::vector<std::vector<NodeId>> members_;  // by cluster, in topological order
  std::vector<std::vector<NodeId>> refused_;  // by cluster: producers of what it reads
  std::vector<char> legal_;                   // by cluster
};

}  // namespace

void fuse_loops(Graph& graph) {
  graph.remove_dead_nodes();
  Clusters clusters(graph);
  clusters.grow();
  struct Fusion {
    std::vector<NodeId> nodes;
    Node loop;
  };
  std::vector<Fusion> fusions;
  clusters.for_each_loop([&](const std::vector<NodeId>& nodes, std::vector<ValueId> outputs) {
    Outlined outlined = outline(graph, nodes, {}, outputs);
    Node loop;
    loop.op = ir::kLoop;
    loop.name = std::move(outlined.name);
    loop.inputs = std::move(outlined.inputs);
    loop.outputs = std::move(outputs);
    loop.sources = std::move(outlined.sources);
    loop.body = std::move(outlined.body);
    fusions.push_back({nodes, std::move(loop)});
  });
  for (Fusion& fusion : fusions) replace_nodes(graph, fusion.nodes, std::move(fusion.loop));
  graph.remove_dead_nodes();
  graph.sort_topologically();
}

}  // namespace tenon
