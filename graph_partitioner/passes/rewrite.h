// One node being replaced: what a rule reads, and the ways in which it may leave.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/ir/input_symbols.h"
#include "graph_partitioner/passes/decompose/emitter.h"

namespace tenon {

using Attributes = std::map<std::string, ir::Attribute>;

class Rewrite {
 public:
  Rewrite(ir::Graph& graph, ir::NodeId id, const ir::InputSymbols& symbols)
      : emit(graph, id), graph_(graph), id_(id), node_(graph.node(id)), symbols_(symbols) {}

  decomposition::Emitter emit;  // writes nodes in front of this one

  ir::Graph& graph() { return graph_; }
  const ir::Graph& graph() const { return graph_; }
  ir::NodeId id() const { return id_; }
  const ir::Node& node() const { return node_; }  // as it was when the rule began
  ir::ValueId input(size_t index) const { return node_.input(index); }
  ir::ValueId output(size_t index = 0) const { return node_.output(index); }
  bool has_input(size_t index) const { return input(index) != ir::kNoValue; }
  bool is_used(size_t output) const { return emit.is_used(node_.output(output)); }
  DType dtype(ir::ValueId id) const { return graph_.value(id).dtype; }
  // The shape where every dim is known or bound by an input; nullopt otherwise.
  std::optional<Shape> shape(ir::ValueId id) const;
  bool is_bound(const Dim& dim) const { return symbols_.tell(dim); }
  // axis with negative ones counted from the end; nullopt when out of range.
  std::optional<int64_t> axis(int64_t given, const Shape& shape) const;

  // Sources of another node that dissolves into what is written from here on.
  void absorb(const std::vector<int>& sources);
  // The node changes and keeps its outputs.
  void become(std::string op, std::vector<ir::ValueId> inputs, Attributes attributes = {});
  void set_shape(size_t output, Shape shape);
  // The node stays and says why, so that whoever asks for a kernel can tell. False.
  bool refuse(std::string why);
  // Every use of an output reads `by` instead. False where a graph output would lose its producer.
  bool replace(size_t output, ir::ValueId by);

 private:
  void hand_sources_on(ir::ValueId old, ir::NodeId producer);

  ir::Graph& graph_;
  ir::NodeId id_;
  ir::Node node_;
  const ir::InputSymbols& symbols_;
};

// True when the graph changed.
using RewriteRule = bool (*)(Rewrite&);
struct NamedRewrite {
  std::string_view op;
  RewriteRule rule;
};

// One visit of every node with the rule for its op; dead nodes are gone afterwards.
bool apply_rules(ir::Graph& graph, std::span<const std::span<const NamedRewrite>> families);

}  // namespace tenon
