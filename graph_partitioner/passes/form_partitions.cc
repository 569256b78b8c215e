#include "graph_partitioner/passes/form_partitions.h"

#include <algorithm>
#include <limits>
#include <map>

namespace tenon {
namespace {

class Levels {
 public:
  Levels(const ir::Graph& graph, const std::vector<char>& claimable)
      : claimable_(claimable),
        level_(graph.order().size(), 0),
        consumers_(graph.order().size()),
        producers_(graph.order().size()) {
    std::map<ir::NodeId, size_t> position;
    for (size_t i = 0; i < graph.order().size(); ++i) {
      position[graph.order()[i]] = i;
      for (ir::ValueId input : graph.node(graph.order()[i]).inputs) {
        if (input == ir::kNoValue || graph.value(input).producer == ir::kNoNode) continue;
        const size_t producer = position.at(graph.value(input).producer);
        producers_[i].push_back(producer);
        consumers_[producer].push_back(i);
      }
    }
  }

  void rise() {
    for (size_t i = 0; i < level_.size(); ++i) {
      for (size_t producer : producers_[i]) {
        const int step = claimable_[producer] && !claimable_[i] ? 1 : 0;
        level_[i] = std::max(level_[i], level_[producer] + step);
      }
    }
  }

  void sink(const std::vector<std::vector<size_t>>& together) {
    std::vector<int> wanted = level_;
    for (const auto& group : together) {
      int latest = 0;
      for (size_t member : group) {
        if (claimable_[member]) latest = std::max(latest, level_[member]);
      }
      for (size_t member : group) wanted[member] = std::max(wanted[member], latest);
    }
    for (size_t i = level_.size(); i-- > 0;) {
      if (!claimable_[i]) continue;
      int limit = wanted[i];
      for (size_t consumer : consumers_[i]) {
        limit = std::min(limit, level_[consumer] - (claimable_[consumer] ? 0 : 1));
      }
      level_[i] = std::max(level_[i], limit);
    }
  }

  std::vector<int> take() { return std::move(level_); }

 private:
  const std::vector<char>& claimable_;
  std::vector<int> level_;
  std::vector<std::vector<size_t>> consumers_, producers_;
};

}  // namespace

Grouping form_partitions(const ir::Graph& graph, const std::vector<char>& claimable,
                         const std::vector<std::vector<size_t>>& together) {
  Levels levels(graph, claimable);
  levels.rise();
  levels.sink(together);
  Grouping grouping;
  grouping.level = levels.take();
  std::map<int, std::vector<size_t>> by_level;
  for (size_t i = 0; i < grouping.level.size(); ++i) {
    if (claimable[i]) by_level[grouping.level[i]].push_back(i);
  }
  for (auto& [level, members] : by_level) grouping.groups.push_back(std::move(members));
  return grouping;
}

}  // namespace tenon
