// ONNX Runtime's collectives as those of ir/collectives.h.
#include "graph_partitioner/ir/collectives.h"

#include <algorithm>

#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

ValueId collective(Emitter& emit, const ir::Collective& what, ValueId x,
                   std::optional<Shape> shape) {
  Node node;
  what.write_to(node);
  node.inputs = {x};
  return emit.emit(std::move(node), emit.dtype(x), std::move(shape));
}

Results all_reduce(Emitter& emit, const Node& node) {
  const ValueId x = node.input(0);
  return {collective(emit, {.op = std::string(ir::kAllReduce)}, x, emit.shape(x))};
}

Results all_to_all(Emitter& emit, const Node& node) {
  const ValueId x = node.input(0);
  const int64_t ranks = node.integer("group_size", 1);
  const auto shape = emit.shape(x);
  if (ranks < 1 || !shape || shape->empty()) return {};
  return {collective(emit, {.op = std::string(ir::kAllToAll), .ranks = ranks}, x, shape)};
}

// Brought to the first dim and back.
Results all_gather(Emitter& emit, const Node& node) {
  const ValueId x = node.input(0);
  const int64_t ranks = node.integer("group_size", 1);
  const auto shape = emit.shape(x);
  const auto axis = normal_axis(node.integer("axis", 1), shape);
  if (ranks < 1 || !axis) return {};
  std::vector<int64_t> order = axes_between(0, static_cast<int64_t>(shape->size()));
  std::rotate(order.begin(), order.begin() + *axis, order.begin() + *axis + 1);
  std::vector<int64_t> back = axes_between(1, *axis + 1);
  back.push_back(0);
  for (int64_t i = *axis + 1; i < static_cast<int64_t>(shape->size()); ++i) back.push_back(i);
  const ValueId first = *axis == 0 ? x : emit.transpose(x, order);
  auto gathered = emit.shape(first);
  (*gathered)[0] = (*gathered)[0] * ranks;
  const ValueId all =
      collective(emit, {.op = std::string(ir::kAllGather), .ranks = ranks}, first, gathered);
  return {*axis == 0 ? all : emit.transpose(all, back)};
}

constexpr NamedRule kRules[] = {
    {"com.microsoft::AllGather", all_gather},
    {"com.microsoft::AllReduce", all_reduce},
    {"com.microsoft::AllToAll", all_to_all},
};

}  // namespace

std::span<const NamedRule> collective_rules() { return kRules; }

}  // namespace tenon::decomposition
