#include "graph_partitioner/passes/separate_outputs.h"

#include <set>

namespace tenon {

void separate_outputs(ir::Graph& graph) {
  std::set<ir::ValueId> taken;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ir::ValueId output = graph.outputs()[i];
    const bool is_written = graph.producer(output) != nullptr;
    if (is_written && taken.insert(output).second) continue;
    ir::Value copy;
    copy.name = graph.value(output).name;
    copy.dtype = graph.value(output).dtype;
    copy.shape = graph.value(output).shape;
    ir::Node view;
    view.op = "Reshape";
    view.inputs = {output};
    view.outputs = {graph.add_value(std::move(copy))};
    if (const ir::Node* producer = graph.producer(output)) view.sources = producer->sources;
    graph.set_output(i, view.outputs[0]);
    taken.insert(view.outputs[0]);
    graph.add_node(std::move(view));
  }
}

}  // namespace tenon
