#include "graph_partitioner/passes/spared_copies.h"

#include <algorithm>
#include <set>

namespace tenon {
namespace {

class Placement {
 public:
  explicit Placement(const ir::Graph& graph) : graph_(graph) {}

  void put(const std::vector<size_t>& group) {
    for (const size_t position : group) on_gpu_.insert(graph_.order()[position]);
  }

  bool spares_copies(const std::vector<size_t>& group) const {
    std::set<ir::NodeId> inside;
    for (const size_t position : group) inside.insert(graph_.order()[position]);
    size_t if_claimed = 0, if_left = 0;
    for (const ir::ValueId id : read_by(inside)) {
      ++(on_gpu_.contains(graph_.value(id).producer) ? if_left : if_claimed);
    }
    for (const ir::NodeId id : inside) {
      for (const ir::ValueId output : graph_.node(id).outputs) {
        if (output == ir::kNoValue) continue;
        if_left += is_read(output, inside, /*on_gpu=*/true);
        if_claimed += is_read(output, inside, /*on_gpu=*/false) ||
                      std::ranges::count(graph_.outputs(), output) > 0;
      }
    }
    return if_claimed < if_left;
  }

 private:
  std::set<ir::ValueId> read_by(const std::set<ir::NodeId>& inside) const {
    std::set<ir::ValueId> values;
    for (const ir::NodeId id : inside) {
      for (const ir::ValueId input : graph_.node(id).inputs) {
        if (input == ir::kNoValue || graph_.value(input).is_constant()) continue;
        if (!inside.contains(graph_.value(input).producer)) values.insert(input);
      }
    }
    return values;
  }

  bool is_read(ir::ValueId id, const std::set<ir::NodeId>& inside, bool on_gpu) const {
    return std::ranges::any_of(graph_.consumers(id), [&](ir::NodeId reader) {
      return !inside.contains(reader) && on_gpu_.contains(reader) == on_gpu;
    });
  }

  const ir::Graph& graph_;
  std::set<ir::NodeId> on_gpu_;
};

}  // namespace

void count_spared_copies(const ir::Graph& graph, const std::vector<std::vector<size_t>>& groups,
                         std::vector<Support>& gains) {
  Placement placement(graph);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (gains[i]) placement.put(groups[i]);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (gains[i] || !placement.spares_copies(groups[i])) continue;
      gains[i] = Support::yes();
      placement.put(groups[i]);
      changed = true;
    }
  }
}

}  // namespace tenon
