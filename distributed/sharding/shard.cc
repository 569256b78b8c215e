#include "distributed/sharding/shard.h"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/sharding/plan.h"
#include "distributed/sharding/rewrite.h"
#include "distributed/sharding/tokens.h"
#include "graph_partitioner/ir/collectives.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::ValueId;

// Of constants that a node reads or that leave the graph, each once.
std::set<ValueId> held_constants(const Graph& graph) {
  std::set<ValueId> held(graph.outputs().begin(), graph.outputs().end());
  for (const ir::NodeId id : graph.order()) {
    const auto& inputs = graph.node(id).inputs;
    held.insert(inputs.begin(), inputs.end());
  }
  std::erase_if(
      held, [&](ValueId id) { return id == ir::kNoValue || graph.value(id).constant == nullptr; });
  return held;
}

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const ValueId id : held_constants(graph)) {
    bytes += static_cast<int64_t>(graph.value(id).constant->bytes);
  }
  return bytes;
}

bool has_collectives(const Graph& graph) {
  return std::ranges::any_of(graph.order(), [&](ir::NodeId id) {
    return ir::is_collective(graph.node(id)) || ir::is_imported_collective(graph.node(id));
  });
}

// A view of a view is a view of what both see: [b, s, H * D] as [b, s * H, D] as [b, s, H, D] has
// heads in a dim of their own in the end, but not on the way.
void look_through_views(Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    ir::Node& view = graph.node(id);
    if (!view.is("Reshape") || view.inputs.size() != 1) continue;
    const ir::Node* first = graph.producer(view.input(0));
    if (first == nullptr || !first->is("Reshape") || first->inputs.size() != 1) continue;
    view.inputs = first->inputs;
    view.sources = ir::merge_sources(view.sources, first->sources);
  }
  graph.remove_dead_nodes();
}

// Large ones that no decision speaks of: read whole, like the tables of rotary embeddings.
void add_large_constants(const Graph& graph, const Plan& plan, int64_t least, size_t old_values,
                         ShardingReport& report) {
  constexpr int64_t kSmall = 1024;
  std::set<ValueId> known;
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    for (const ValueId input : node.inputs) {
      if (input == ir::kNoValue || static_cast<size_t>(input) >= old_values) continue;
      const ir::TensorPtr constant = graph.value(input).constant;
      if (!constant || plan.told.contains(id) || !known.insert(input).second) continue;
      const auto bytes = static_cast<int64_t>(constant->bytes);
      if (bytes < std::max(least, kSmall)) continue;
      report.wholes.push_back(
          {graph.value(input).name, fmt::format("'{}' reads all of it", node.name), bytes});
    }
  }
}

void add_caches(const Graph& graph, const Plan& plan, ShardingReport& report) {
  for (const auto& [symbol, shares] : plan.symbols) {
    CacheShare& cache = report.caches.emplace_back(CacheShare{symbol, {}, {}});
    std::ranges::transform(shares, std::back_inserter(cache.heads_by_rank), length);
    for (const ValueId input : graph.inputs()) {
      const ir::Value& value = graph.value(input);
      const bool is_sized =
          value.shape && std::ranges::count(*value.shape, Dim::symbol(symbol)) > 0;
      if (is_sized) cache.inputs.push_back(value.name);
    }
  }
}

// In the order in which ranks run them.
std::vector<Exchange> exchanges_of(const Graph& graph) {
  std::vector<Exchange> all;
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    if (!ir::is_collective(node)) continue;
    const bool scatters = node.is(ir::kReduceScatter);
    const ir::Value& together = graph.value(scatters ? node.input(0) : node.output(0));
    const Dim elements = element_count(*together.shape);
    all.push_back({node.op.substr(node.op.find("::") + 2), node.name, together.dtype, elements,
                   elements * int64_t{bit_width(together.dtype) / 8}});
  }
  return all;
}

void add_totals(const Graph& graph, ShardingReport& report) {
  int64_t cut = 0;
  for (const WeightShare& weight : report.weights) cut += weight.bytes;
  report.whole_bytes = constant_bytes(graph) - cut;
  report.bytes_by_rank.assign(static_cast<size_t>(report.ranks), report.whole_bytes);
  for (const WeightShare& weight : report.weights) {
    for (size_t rank = 0; rank < report.bytes_by_rank.size(); ++rank) {
      report.bytes_by_rank[rank] += weight.bytes_by_rank[rank];
    }
  }
}

}  // namespace

ShardingReport shard(Graph& graph, const ShardingOptions& options) {
  const auto& [rank, ranks, least, least_scattered, annotations] = options;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw UserError(fmt::format("rank {} of {} ranks: ranks are counted from 0", rank, ranks));
  }
  ShardingReport report;
  report.rank = rank;
  report.ranks = ranks;
  report.constant_bytes = constant_bytes(graph);
  if (ranks > 1 && has_collectives(graph)) {
    report.wholes.push_back({graph.name, "it has collectives: whoever wrote it has cut it", 0});
  } else if (ranks > 1) {
    look_through_views(graph);
    const Plan plan = make_plan(graph, {ranks, least}, annotations);
    report.annotations = plan.annotations;
    for (const Whole& whole : plan.wholes) {
      report.wholes.push_back({whole.node, whole.reason, whole.bytes});
    }
    const size_t old_values = graph.value_count();
    rewrite(graph, plan, rank, report);
    add_caches(graph, plan, report);
    report.tokens = deal_tokens(graph, plan, {rank, ranks, least_scattered, old_values});
    report.exchanges = exchanges_of(graph);
    add_large_constants(graph, plan, least, old_values, report);
  }
  add_totals(graph, report);
  return report;
}

}  // namespace tenon::distributed
