#include "graph_partitioner/ir/verify.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/nesting.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/fusions.h"

namespace tenon::ir {
namespace {

std::string describe(const Node& node) { return fmt::format("node '{}' ({})", node.name, node.op); }

Support verify_tensor(const Value& value) {
  const Tensor& tensor = *value.constant;
  if (tensor.dtype != value.dtype) {
    return Support::no(fmt::format("constant '{}' is {} but its bytes are {}", value.name,
                                   name(value.dtype), name(tensor.dtype)));
  }
  if (!value.shape || *value.shape != make_shape(tensor.dims)) {
    return Support::no(fmt::format("constant '{}' does not have its tensor's shape", value.name));
  }
  if (bit_width(tensor.dtype) != 0 &&
      tensor.bytes != storage_bytes(tensor.dtype, tensor.elements())) {
    return Support::no(fmt::format("constant '{}' has {} bytes, its shape needs {}", value.name,
                                   tensor.bytes, storage_bytes(tensor.dtype, tensor.elements())));
  }
  return Support::yes();
}

Support verify_values(const Graph& graph) {
  for (ValueId id = 0; id < static_cast<ValueId>(graph.value_count()); ++id) {
    const Value& value = graph.value(id);
    if (graph.find(value.name) != id) {  // of two it finds one
      return Support::no(fmt::format("two values are named '{}'", value.name));
    }
    if (value.constant && value.producer != kNoNode) {
      return Support::no(fmt::format("constant '{}' also has a producer", value.name));
    }
    if (value.constant) {
      if (Support tensor = verify_tensor(value); !tensor) return tensor;
    }
    if (value.elements && value.shape && is_static(*value.shape) &&
        element_count(*value.shape) != Dim(static_cast<int64_t>(value.elements->size()))) {
      return Support::no(fmt::format("'{}' has {} elements but shape {}", value.name,
                                     value.elements->size(), text(*value.shape)));
    }
  }
  return Support::yes();
}

// How many inputs the body of `node` takes; its outputs always pair with the node's.
size_t body_inputs(const Node& node) {
  if (node.is(kScaledDot)) return 1 + ScaledDot::from(node).extra.size();
  return node.inputs.size();
}

// Dots of the first input, or of what a loop before them makes, one for each output.
Support verify_merged(const Node& node) {
  const Graph& body = *node.body;
  if (body.order().size() != body.outputs().size()) {
    return Support::no(fmt::format("{}: {} nodes in its body, expected one for each of {} outputs",
                                   describe(node), body.order().size(), body.outputs().size()));
  }
  ValueId rows = body.inputs()[0];
  for (size_t i = 0; i < body.order().size(); ++i) {
    const Node& dot = body.node(body.order()[i]);
    const bool gives = dot.outputs.size() == 1 && dot.output(0) == body.outputs()[i];
    if (gives && dot.is(kScaledDot) && dot.input(0) == rows) continue;
    if (gives && is_loop(dot) && i == 0 && body.order().size() > 1) {
      rows = dot.output(0);
      continue;
    }
    return Support::no(
        fmt::format("{}: node {} of its body is {}, expected a {} that gives output {} from its "
                    "first input, or from a {} at the beginning",
                    describe(node), i, describe(dot), kScaledDot, i, kLoop));
  }
  return Support::yes();
}

Support verify_levels(const Graph& graph, Nesting& nesting);

Support verify_body(const Node& node, Nesting& nesting) {
  if (node.body->inputs().size() != body_inputs(node)) {
    return Support::no(fmt::format("{}: its body takes {} inputs, expected {}", describe(node),
                                   node.body->inputs().size(), body_inputs(node)));
  }
  if (node.body->outputs().size() != node.outputs.size()) {
    return Support::no(fmt::format("{}: its body gives {} outputs, expected {}", describe(node),
                                   node.body->outputs().size(), node.outputs.size()));
  }
  if (node.is(kMergedDots)) {
    if (Support dots = verify_merged(node); !dots) return dots;
  }
  Support body = verify_levels(*node.body, nesting);
  if (!body) body.reason = fmt::format("{}, body: {}", describe(node), body.reason);
  return body;
}

class Order {
 public:
  Order(const Graph& graph, Nesting& nesting)
      : graph_(graph), nesting_(nesting), written_(graph.value_count(), 0) {}

  Support verify() {
    for (ValueId id : graph_.inputs()) {
      if (graph_.value(id).producer != kNoNode) {
        return Support::no(fmt::format("input '{}' has a producer", graph_.value(id).name));
      }
      written_[id] = 1;
    }
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.value_count()); ++id) {
      if (graph_.value(id).is_constant()) written_[id] = 1;
    }
    for (NodeId id : graph_.order()) {
      if (Support node = verify_node(id); !node) return node;
    }
    for (ValueId id : graph_.outputs()) {
      if (!written_[id]) {
        return Support::no(fmt::format("output '{}' is never written", graph_.value(id).name));
      }
    }
    return Support::yes();
  }

 private:
  Support verify_node(NodeId id) {
    const Node& node = graph_.node(id);
    for (ValueId input : node.inputs) {
      if (input != kNoValue && !written_[input]) {
        return Support::no(fmt::format("{} reads '{}' before it is written", describe(node),
                                       graph_.value(input).name));
      }
    }
    for (ValueId output : node.outputs) {
      if (output == kNoValue) continue;
      if (written_[output] || graph_.value(output).producer != id) {
        return Support::no(fmt::format("{} writes '{}', which is written elsewhere too",
                                       describe(node), graph_.value(output).name));
      }
      written_[output] = 1;
    }
    if (!std::is_sorted(node.sources.begin(), node.sources.end()) ||
        std::adjacent_find(node.sources.begin(), node.sources.end()) != node.sources.end()) {
      return Support::no(fmt::format("{}: sources must be sorted and unique", describe(node)));
    }
    if (is_collective(node)) {
      if (Support numbers = check(Collective::from(node)); !numbers) {
        return Support::no(fmt::format("{}: {}", describe(node), numbers.reason));
      }
      const bool follows = node.inputs.size() == 2 && graph_.producer(node.inputs[1]) != nullptr &&
                           is_collective(*graph_.producer(node.inputs[1]));
      if ((node.inputs.size() != 1 && !follows) || node.outputs.size() != 1) {
        return Support::no(fmt::format(
            "{}: one input, the collective before it at most, and one output", describe(node)));
      }
    }
    if (node.is(kMergedDots) && node.body) {
      if (Support inside = verify_taken(node); !inside) return inside;
    }
    return node.body ? verify_body(node, nesting_) : Support::yes();
  }

  // No kernel stores what one merged dot takes from another.
  Support verify_taken(const Node& node) const {
    const Graph& body = *node.body;
    for (size_t i = 0; i < std::min(node.outputs.size(), body.outputs().size()); ++i) {
      const ValueId output = node.outputs[i];
      if (output == kNoValue || body.consumers(body.outputs()[i]).empty()) continue;
      if (graph_.is_output(output) || !graph_.consumers(output).empty()) {
        return Support::no(fmt::format("{}: '{}' is taken by another of its dots, but read outside",
                                       describe(node), graph_.value(output).name));
      }
    }
    return Support::yes();
  }

  const Graph& graph_;
  Nesting& nesting_;
  std::vector<char> written_;
};

// The graph and the bodies in it.
Support verify_levels(const Graph& graph, Nesting& nesting) {
  if (!nesting.has_room()) return Support::no("expected " + Nesting::limit("bodies"));
  const Nesting::Level level = nesting.enter();
  if (Support values = verify_values(graph); !values) return values;
  return Order(graph, nesting).verify();
}

}  // namespace

Support verify(const Graph& graph) {
  Nesting nesting;
  return verify_levels(graph, nesting);
}

}  // namespace tenon::ir
