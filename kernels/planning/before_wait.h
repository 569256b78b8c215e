// What a launch reads before its griddepcontrol.wait: decided here alone. The cost model asks it of
// inputs before there is a kernel, the program marks them so in the kernel, code generation follows
// the mark (codegen/pdl.h), and LaunchDependencies checks and prints the whole.
#pragma once

#include <algorithm>

#include "graph_partitioner/ir/fusions.h"
#include "kernels/planning/candidate.h"
#include "kernels/planning/views.h"

namespace tenon::kernels {

// What the caller brings is there before the first launch of a Run.
inline bool reads_before_wait(const ir::Graph& graph, ir::ValueId id, const Settings& settings) {
  return settings.tuning.reads_inputs_before_wait && caller_brings(graph, id);
}

// A product whose rows are read so.
inline bool is_early_product(const ir::Graph& graph, const ir::Node& node,
                             const Settings& settings) {
  return (node.is(ir::kScaledDot) || node.is(ir::kMergedDots)) &&
         reads_before_wait(graph, node.inputs[0], settings);
}

// All of them wait for none of the others, and run side by side as they find room.
inline int64_t count_early_products(const ir::Graph& graph, const Settings& settings) {
  return std::ranges::count_if(graph.order(), [&](ir::NodeId id) {
    return is_early_product(graph, graph.node(id), settings);
  });
}

}  // namespace tenon::kernels
