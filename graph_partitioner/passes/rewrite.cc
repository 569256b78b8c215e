#include "graph_partitioner/passes/rewrite.h"

#include <algorithm>
#include <unordered_map>

#include "graph_partitioner/ir/refusal.h"

namespace tenon {

std::optional<Shape> Rewrite::shape(ir::ValueId id) const {
  if (id == ir::kNoValue) return std::nullopt;
  const std::optional<Shape>& known = graph_.value(id).shape;
  return known && symbols_.tell(*known) ? known : std::nullopt;
}

std::optional<int64_t> Rewrite::axis(int64_t given, const Shape& shape) const {
  return decomposition::normal_axis(given, shape);
}

void Rewrite::absorb(const std::vector<int>& sources) {
  ir::Node& live = graph_.node(id_);
  live.sources = ir::merge_sources(live.sources, sources);
}

void Rewrite::become(std::string op, std::vector<ir::ValueId> inputs, Attributes attributes) {
  ir::Node& live = graph_.node(id_);
  live.op = std::move(op);
  live.since_version = 0;
  live.inputs = std::move(inputs);
  live.attributes = std::move(attributes);
}

void Rewrite::set_shape(size_t output, Shape shape) {
  const ir::ValueId id = node_.output(output);
  if (id != ir::kNoValue) graph_.value(id).shape = std::move(shape);
}

bool Rewrite::refuse(std::string why) {
  graph_.node(id_).attributes[std::string(ir::kRefused)] = std::move(why);
  return false;
}

bool Rewrite::replace(size_t output, ir::ValueId by) {
  const ir::ValueId old = node_.output(output);
  if (old == ir::kNoValue) return true;
  const ir::NodeId producer = graph_.value(by).producer;
  if (graph_.is_output(old) && (producer == ir::kNoNode || graph_.is_output(by))) return false;
  hand_sources_on(old, producer);
  graph_.replace_uses(old, by);
  return true;
}

// A node that dissolves into nothing lives on in its readers, or else in what it read.
void Rewrite::hand_sources_on(ir::ValueId old, ir::NodeId producer) {
  const std::vector<int> sources = graph_.node(id_).sources;
  if (producer != ir::kNoNode) {
    const std::vector<int>& known = graph_.node(producer).sources;
    if (std::includes(known.begin(), known.end(), sources.begin(), sources.end())) return;
  }
  std::vector<ir::NodeId> heirs = graph_.consumers(old);
  if (heirs.empty() && producer != ir::kNoNode) heirs.push_back(producer);
  for (const ir::NodeId heir : heirs) {
    graph_.node(heir).sources = ir::merge_sources(graph_.node(heir).sources, sources);
  }
}

bool apply_rules(ir::Graph& graph, std::span<const std::span<const NamedRewrite>> families) {
  std::unordered_map<std::string_view, RewriteRule> rules;
  for (const auto family : families) {
    for (const NamedRewrite& named : family) rules.emplace(named.op, named.rule);
  }
  const ir::InputSymbols symbols(graph);
  const std::vector<ir::NodeId> order = graph.order();
  bool changed = false;
  for (const ir::NodeId id : order) {
    const auto found = rules.find(graph.node(id).op);
    if (found == rules.end()) continue;
    Rewrite rewrite(graph, id, symbols);
    if (!found->second(rewrite)) continue;
    changed = true;
    const std::vector<ir::ValueId> outputs = graph.node(id).outputs;
    const bool is_live = std::any_of(outputs.begin(), outputs.end(), [&](ir::ValueId output) {
      return rewrite.emit.is_used(output);
    });
    if (!is_live) graph.remove_node(id);
  }
  graph.remove_dead_nodes();
  return changed;
}

}  // namespace tenon
