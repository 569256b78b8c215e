#include "graph_partitioner/passes/shape_arithmetic.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "graph_partitioner/ir/input_symbols.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

using ir::kNoValue;

class Rewriter {
 public:
  explicit Rewriter(ir::Graph& graph) : graph_(graph), input_symbols_(graph) {}

  void visit(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    if (node.is("Reshape")) return drop_target(id);
    if (node.is("Expand")) return drop_target(id);
    if (node.is("Slice")) return slice(id);
    if (to_shape_value(id)) return;
    absorb_shape_operands(id);
  }

 private:
  bool is_shape_value(ir::ValueId id) const {
    return id != kNoValue && graph_.value(id).elements && graph_.producer(id);
  }

  // What computed a shape operand belongs to whoever uses the shape. Producers were visited before,
  // so their sources already hold those of their own operands.
  void absorb_shape_operands(ir::NodeId id) {
    ir::Node& node = graph_.node(id);
    for (ir::ValueId input : node.inputs) {
      if (!is_shape_value(input) && !is_end_of_range(node, input)) continue;
      node.sources = ir::merge_sources(node.sources, graph_.producer(input)->sources);
    }
  }

  // A Range of floats ends at a size that was made one, and is as long as that says.
  bool is_end_of_range(const ir::Node& node, ir::ValueId input) const {
    const ir::Node* cast = node.is("Range") && input != kNoValue ? graph_.producer(input) : nullptr;
    return cast && cast->is("Cast") && is_shape_value(cast->input(0));
  }

  void drop_target(ir::NodeId id) {
    ir::Node& node = graph_.node(id);
    if (to_shape_value(id)) return;
    const ir::Value& result = graph_.value(node.outputs[0]);
    if (!result.shape || !input_symbols_.tell(*result.shape)) return;
    absorb_shape_operands(id);
    node.inputs.resize(1);
    node.attributes.erase("allowzero");
    const ir::Value& data = graph_.value(node.inputs[0]);
    if (data.shape && *data.shape == *result.shape) dissolve(id);
  }

  void slice(ir::NodeId id) {
    if (to_shape_value(id)) return;
    const auto region = known_region(id);
    if (!region || !input_symbols_.tell(region->starts) || !input_symbols_.tell(region->sizes))
      return;
    absorb_shape_operands(id);
    ir::Node& node = graph_.node(id);
    const ir::Value& data = graph_.value(node.inputs[0]);
    const bool takes_all =
        region->sizes == *data.shape &&
        std::all_of(region->steps.begin(), region->steps.end(), [](int64_t s) { return s == 1; });
    std::vector<std::string> starts;
    for (const Dim& start : region->starts) starts.push_back(start.text());
    node.op = "tenon::Slice";
    node.since_version = 0;
    node.inputs.resize(1);
    node.attributes = {{"starts", std::move(starts)}, {"steps", region->steps}};
    graph_.value(node.outputs[0]).shape = region->sizes;
    if (takes_all) dissolve(id);
  }

  std::optional<SliceRegion> known_region(ir::NodeId id) const {
    try {
      return slice_region(NodeFacts(graph_, graph_.node(id)));
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  // The node changes nothing: its consumers read its input and stand for it, too.
  void dissolve(ir::NodeId id) {
    const ir::Node node = graph_.node(id);
    if (graph_.is_output(node.outputs[0])) return;
    for (ir::NodeId consumer : graph_.consumers(node.outputs[0])) {
      ir::Node& taker = graph_.node(consumer);
      taker.sources = ir::merge_sources(taker.sources, node.sources);
    }
    graph_.replace_uses(node.outputs[0], node.inputs[0]);
  }

  bool to_shape_value(ir::NodeId id) {
    ir::Node& node = graph_.node(id);
    if (node.outputs.size() != 1 || node.body) return false;
    const ir::Value& result = graph_.value(node.outputs[0]);
    const bool integers = result.dtype == DType::kI64 || result.dtype == DType::kI32;
    if (!integers || !result.elements || !result.shape || result.shape->size() > 1) return false;
    if (!input_symbols_.tell(*result.elements)) return false;
    absorb_shape_operands(id);
    std::vector<std::string> dims;
    for (const Dim& dim : *result.elements) dims.push_back(dim.text());
    node.op = "tenon::ShapeValue";
    node.since_version = 0;
    node.inputs.clear();
    node.attributes = {{"dims", std::move(dims)}};
    return true;
  }

  ir::Graph& graph_;
  const ir::InputSymbols input_symbols_;
};

}  // namespace

void shape_arithmetic(ir::Graph& graph) {
  Rewriter rewriter(graph);
  const std::vector<ir::NodeId> order = graph.order();
  for (ir::NodeId id : order) rewriter.visit(id);
  graph.remove_dead_nodes();
}

}  // namespace tenon
