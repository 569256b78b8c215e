#include "graph_partitioner/passes/narrow_gathers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/primitives.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool moves_whole_elements(const Node& node) { return node.is("Transpose") || node.is("Reshape"); }

// Of `x` and constants of one element, which broadcast to any shape of `rank` dims.
bool is_pointwise_of(const Graph& graph, const Node& node, ValueId x, size_t rank) {
  if (!ir::is_primitive(node.op, ir::PrimitiveClass::kPointwise) || node.outputs.size() != 1) {
    return false;
  }
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    if (id == x || id == kNoValue) return true;
    const ir::Value& value = graph.value(id);
    return value.is_constant() && value.constant->elements() == 1 && value.shape->size() <= rank;
  });
}

// From the gather on, each the only reader of the one before.
std::vector<NodeId> only_readers(const Graph& graph, const Node& gather) {
  std::vector<NodeId> chain;
  const size_t rank = graph.value(gather.input(0)).shape->size();
  for (ValueId value = gather.output(0); !graph.is_output(value);) {
    const std::vector<NodeId> readers = graph.consumers(value);
    if (readers.size() != 1) break;
    const Node& reader = graph.node(readers[0]);
    const bool fits = reader.input(0) == value &&
                      (moves_whole_elements(reader) || is_pointwise_of(graph, reader, value, rank));
    if (!fits || !graph.value(reader.output(0)).shape) break;
    chain.push_back(readers[0]);
    value = reader.output(0);
  }
  return chain;
}

// How many of them lead to the narrowest type; 0: to none that is narrower than what is gathered.
size_t count_to_narrowest(const Graph& graph, const Node& gather,
                          const std::vector<NodeId>& chain) {
  size_t count = 0;
  int least = bit_width(graph.value(gather.output(0)).dtype);
  for (size_t i = 0; i < chain.size(); ++i) {
    const int width = bit_width(graph.value(graph.node(chain[i]).output(0)).dtype);
    if (width >= least || width < 8) continue;
    least = width;
    count = i + 1;
  }
  return count;
}

// The same op on what is about to be gathered.
ValueId apply_before(Graph& graph, NodeId gather, NodeId reader, ValueId x) {
  Node node = graph.node(reader);
  ir::Value result;
  result.name = graph.value(node.output(0)).name + ".part";
  result.dtype = graph.value(node.output(0)).dtype;
  result.shape = graph.value(x).shape;
  std::ranges::replace(node.inputs, node.input(0), x);
  node.outputs = {graph.add_value(std::move(result))};
  const ValueId made = node.outputs[0];
  graph.insert_before(gather, std::move(node));
  return made;
}

void narrow(Graph& graph, NodeId gather, std::vector<NodeId> chain) {
  const DType wide = graph.value(graph.node(gather).output(0)).dtype;
  const DType codes = graph.value(graph.node(chain.back()).output(0)).dtype;
  ValueId part = graph.node(gather).input(0);
  for (const NodeId id : chain) {
    if (!moves_whole_elements(graph.node(id))) part = apply_before(graph, gather, id, part);
  }
  Node& gathering = graph.node(gather);
  gathering.inputs = {part};
  gathering.attributes["note"] = fmt::format("of {} instead of {}", name(codes), name(wide));
  graph.value(gathering.output(0)).dtype = codes;
  for (const NodeId id : chain) {
    const Node& node = graph.node(id);
    if (moves_whole_elements(node)) {
      graph.value(node.output(0)).dtype = codes;
      continue;
    }
    Node& holder = graph.node(gather);
    holder.sources = ir::merge_sources(holder.sources, node.sources);
    graph.replace_uses(node.output(0), node.input(0));
    graph.remove_node(id);
  }
}

}  // namespace

void narrow_gathers(Graph& graph) {
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    const Node& node = graph.node(id);
    if (node.op != ir::kAllGather || !graph.value(node.input(0)).shape) continue;
    std::vector<NodeId> chain = only_readers(graph, node);
    chain.resize(count_to_narrowest(graph, node, chain));
    if (!chain.empty()) narrow(graph, id, std::move(chain));
  }
}

}  // namespace tenon
