#include "graph_partitioner/passes/read_packed_heads.h"

#include <algorithm>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/head_layout.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// A Slice of heads, all of the other axes whole.
bool read_from_whole(const Graph& graph, ValueId& value, std::string& layout,
                     std::vector<int>& sources) {
  const Node* slice = graph.producer(value);
  if (layout != "bshd" || slice == nullptr || !slice->is("tenon::Slice")) return false;
  const auto &part = graph.value(value).shape, &whole = graph.value(slice->input(0)).shape;
  if (!part || !whole || part->size() != 4 || whole->size() != 4) return false;
  const auto starts = slice->texts("starts");
  const auto steps = slice->integers("steps");
  const Dim first = Dim::parse(starts[2]);
  Shape expected = *part;
  expected[2] = (*whole)[2];
  const bool only_heads = *whole == expected && (*whole)[2].is_constant() && first.is_constant() &&
                          starts[0] == "0" && starts[1] == "0" && starts[3] == "0" &&
                          std::ranges::all_of(steps, [](int64_t step) { return step == 1; });
  if (!only_heads) return false;
  value = slice->input(0);
  layout = ir::HeadLayout{"bshd", first.value(), true}.text();
  sources = ir::merge_sources(sources, slice->sources);
  return true;
}

}  // namespace

void read_packed_heads(Graph& graph, const SupportsFn& supports) {
  for (const ir::NodeId id : std::vector<ir::NodeId>(graph.order())) {
    if (!graph.node(id).is(ir::kAttention)) continue;
    Node changed = graph.node(id);
    ir::Attention attention = ir::Attention::from(changed);
    const bool all = read_from_whole(graph, attention.q, attention.q_layout, changed.sources) &&
                     read_from_whole(graph, attention.k, attention.k_layout, changed.sources) &&
                     read_from_whole(graph, attention.v, attention.v_layout, changed.sources);
    if (!all) continue;
    attention.write_to(changed);
    if (supports(graph, changed)) graph.node(id) = std::move(changed);
  }
}

}  // namespace tenon
