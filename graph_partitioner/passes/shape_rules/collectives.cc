// Collectives: ONNX Runtime's own, and those that passes write.
#include "graph_partitioner/ir/collectives.h"

#include <numeric>

#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void same(NodeFacts& facts) {
  if (const Shape* shape = facts.shape(0)) facts.set_shape(0, *shape);
}

void all_to_all(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape == nullptr) return;
  const ir::Node& node = facts.node();
  const int64_t ranks = node.integer(node.is(ir::kAllToAll) ? "ranks" : "group_size", 1);
  if (shape->empty() || ranks < 1) return facts.contradict("it has no rows to deal to ranks");
  facts.require(ranks, ir::Relation::kDivides, (*shape)[0]);
  facts.set_shape(0, *shape);
}

// com.microsoft::AllGather counts axes from 0 and gathers along the second one unless told.
void gather_along_axis(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape == nullptr) return;
  const auto axis = normal_axis(facts.node().integer("axis", 1), shape->size());
  const int64_t ranks = facts.node().integer("group_size", 1);
  if (!axis || ranks < 1) return facts.contradict("its axis or group_size is out of range");
  Shape gathered = *shape;
  gathered[*axis] = gathered[*axis] * ranks;
  facts.set_shape(0, gathered);
}

void all_gather(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape == nullptr || shape->empty()) return;
  const auto collective = ir::Collective::from(facts.node());
  Shape gathered = *shape;
  if (collective.parts.empty()) {
    gathered[0] = gathered[0] * collective.ranks;
  } else {
    facts.require_equal(gathered[0], collective.parts.at(collective.part));
    gathered[0] = std::reduce(collective.parts.begin(), collective.parts.end());
  }
  facts.set_shape(0, gathered);
}

void reduce_scatter(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape == nullptr || shape->empty()) return;
  const auto collective = ir::Collective::from(facts.node());
  Shape part = *shape;
  if (collective.parts.empty()) {
    part[0] = floor_div(part[0], collective.ranks);
    facts.require(collective.ranks, ir::Relation::kDivides, (*shape)[0]);
  } else {
    facts.require_equal(part[0], std::reduce(collective.parts.begin(), collective.parts.end()));
    part[0] = collective.parts.at(collective.part);
  }
  facts.set_shape(0, part);
}

constexpr ShapeRule kRules[] = {
    {"com.microsoft::AllGather", gather_along_axis},
    {"com.microsoft::AllReduce", same},
    {"com.microsoft::AllToAll", all_to_all},
    {ir::kAllGather, all_gather},
    {ir::kAllReduce, same},
    {ir::kAllToAll, all_to_all},
    {ir::kBroadcast, same},
    {ir::kPermute, same},
    {ir::kReduceScatter, reduce_scatter},
};

}  // namespace

std::span<const ShapeRule> collective_shape_rules() { return kRules; }

}  // namespace tenon
