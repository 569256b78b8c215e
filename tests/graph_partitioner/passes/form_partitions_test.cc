#include "graph_partitioner/passes/form_partitions.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/graph_partitioner/random_graph.h"

namespace tenon {
namespace {

struct Edges {
  explicit Edges(const ir::Graph& graph) {
    std::map<ir::NodeId, size_t> position;
    for (size_t i = 0; i < graph.order().size(); ++i) {
      position[graph.order()[i]] = i;
      for (ir::ValueId input : graph.node(graph.order()[i]).inputs) {
        if (const ir::Node* node = graph.producer(input)) {
          list.emplace(position.at(graph.value(node->outputs[0]).producer), i);
        }
      }
    }
  }
  std::set<std::pair<size_t, size_t>> list;
};

// The graph with each group contracted to one node has no cycle. That is both: convex groups, and
// an order between them.
bool contracted_graph_is_acyclic(const Edges& edges, const std::vector<std::vector<size_t>>& groups,
                                 size_t nodes) {
  std::vector<size_t> owner(nodes);
  for (size_t i = 0; i < nodes; ++i) owner[i] = i;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t member : groups[g]) owner[member] = nodes + g;
  }
  std::set<std::pair<size_t, size_t>> contracted;
  for (const auto& [from, to] : edges.list) {
    if (owner[from] != owner[to]) contracted.emplace(owner[from], owner[to]);
  }
  std::set<size_t> left(owner.begin(), owner.end());
  for (bool moved = true; moved;) {
    moved = false;
    for (auto node = left.begin(); node != left.end();) {
      bool waits = false;
      for (const auto& [from, to] : contracted) waits |= to == *node && left.count(from);
      moved |= !waits;
      node = waits ? std::next(node) : left.erase(node);
    }
  }
  return left.empty();
}

TEST(FormPartitions, RandomGroupsAreConvexAndOrdered) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int nodes = 5 + static_cast<int>(seed % 30);
    const ir::Graph graph = testing::random_graph(random, nodes);
    std::vector<char> claimable(nodes);
    for (char& one : claimable) one = testing::pick(random, 0, 3) != 0;
    std::vector<std::vector<size_t>> together;
    for (int k = 0; k < 4; ++k) {
      together.push_back({static_cast<size_t>(testing::pick(random, 0, nodes - 1)),
                          static_cast<size_t>(testing::pick(random, 0, nodes - 1))});
    }
    const Grouping grouping = form_partitions(graph, claimable, together);
    size_t grouped = 0;
    for (const auto& group : grouping.groups) {
      grouped += group.size();
      for (size_t member : group) ASSERT_TRUE(claimable[member]);
    }
    ASSERT_EQ(grouped, static_cast<size_t>(std::count(claimable.begin(), claimable.end(), 1)));
    ASSERT_TRUE(contracted_graph_is_acyclic(Edges(graph), grouping.groups, nodes));
  }
}

TEST(FormPartitions, AllClaimableIsOneGroup) {
  std::mt19937 random(3);
  const ir::Graph graph = testing::random_graph(random, 25);
  EXPECT_EQ(form_partitions(graph, std::vector<char>(25, 1), {}).groups.size(), 1u);
}

// A weight's dequantisation has no producers; it belongs where its product is.
TEST(FormPartitions, FusedNodesSinkTogether) {
  std::mt19937 random(1);
  ir::Graph graph;
  const auto add = [&](std::vector<ir::ValueId> inputs) {
    ir::Node node;
    node.op = "Op";
    node.inputs = std::move(inputs);
    node.outputs = {graph.add_value({})};
    const ir::ValueId out = node.outputs[0];
    graph.add_node(std::move(node));
    return out;
  };
  const ir::ValueId x = graph.add_input({});
  const ir::ValueId weight = add({});          // 0
  const ir::ValueId first = add({x});          // 1
  const ir::ValueId unclaimed = add({first});  // 2
  add({unclaimed, weight});                    // 3
  const std::vector<char> claimable{1, 1, 0, 1};
  EXPECT_EQ(form_partitions(graph, claimable, {}).groups,
            (std::vector<std::vector<size_t>>{{0, 1}, {3}}));
  EXPECT_EQ(form_partitions(graph, claimable, {{0, 3}}).groups,
            (std::vector<std::vector<size_t>>{{1}, {0, 3}}));
}

}  // namespace
}  // namespace tenon
