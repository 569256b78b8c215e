#include "graph_partitioner/passes/infer_shapes.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {

using ir::kNoValue;

namespace {

using RuleMap = std::unordered_map<std::string_view, ShapeRule>;

RuleMap join(std::initializer_list<std::span<const ShapeRule>> tables) {
  RuleMap map;
  for (const auto& table : tables) {
    for (const ShapeRule& rule : table) map.emplace(rule.op, rule);
  }
  return map;
}

const RuleMap& shape_rules() {
  static const RuleMap rules =
      join({pointwise_shape_rules(), movement_shape_rules(), slicing_shape_rules(),
            dot_shape_rules(), attention_shape_rules(), collective_shape_rules(),
            window_shape_rules(), quantize_shape_rules(), other_shape_rules()});
  return rules;
}

void apply(const RuleMap& rules, NodeFacts& facts) {
  const auto rule = rules.find(facts.node().op);
  if (rule == rules.end()) return;
  try {
    rule->second.infer(facts);
  } catch (const UserError& error) {
    // A size that overflows or an attribute of the wrong type: nothing of ours claims the node and
    // the runtime reports it.
    facts.contradict(error.what());
  }
}

// Bytes, strides and the room that kernels add to them are counted in 64 bits, whatever the sizes.
void refuse_what_overflows(NodeFacts& facts) {
  constexpr int64_t kRoom = 4096;
  for (const std::optional<Shape>& shape : facts.shapes()) {
    if (!shape) continue;
    try {
      (void)(element_count(*shape) * kRoom);
    } catch (const UserError& error) {
      return facts.contradict(error.what());
    }
  }
}

}  // namespace

ShapeInference::ShapeInference(ir::Graph& graph) : graph_(graph), input_symbols_(graph) {}

void ShapeInference::merge_shape(ir::ValueId id, const Shape& inferred) const {
  std::optional<Shape>& given = graph_.value(id).shape;
  if (!given) {
    given = inferred;
    return;
  }
  if (given->size() != inferred.size()) {
    given.reset();
    return;
  }
  for (size_t i = 0; i < inferred.size(); ++i) {
    Dim& known = (*given)[i];
    if (known == inferred[i]) continue;
    if (known.is_constant() && inferred[i].is_constant()) {
      given.reset();
      return;
    }
    if (known.is_constant()) continue;
    const bool says_more = inferred[i].is_constant() || input_symbols_.tell(inferred[i]);
    if (says_more || !input_symbols_.tell(known)) known = inferred[i];
  }
}

void ShapeInference::forget(const ir::Node& node) const {
  for (const ir::ValueId output : node.outputs) {
    if (output == kNoValue) continue;
    graph_.value(output).shape.reset();
    graph_.value(output).elements.reset();
  }
}

Support ShapeInference::infer(ir::NodeId id) {
  static const RuleMap rules_of_elements = join({element_rules()});

  const ir::Node& node = graph_.node(id);
  NodeFacts facts(graph_, node);
  apply(shape_rules(), facts);
  refuse_what_overflows(facts);
  if (facts.contradiction()) {
    forget(node);
    return Support::no(*facts.contradiction());
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != kNoValue && facts.shapes()[i]) {
      merge_shape(node.outputs[i], *facts.shapes()[i]);
    }
  }
  apply(rules_of_elements, facts);
  for (const ir::Requirement& requirement : facts.requirements()) graph_.require(requirement);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue || !facts.new_elements()[i]) continue;
    ir::Value& value = graph_.value(node.outputs[i]);
    const auto count = static_cast<int64_t>(facts.new_elements()[i]->size());
    if (value.shape && element_count(*value.shape).is(count)) {
      value.elements = facts.new_elements()[i];
    }
  }
  return Support::yes();
}

bool has_shape_rule(std::string_view op) { return shape_rules().contains(op); }

std::vector<std::string_view> ops_with_shape_rules() {
  std::vector<std::string_view> ops;
  for (const auto& [op, rule] : shape_rules()) ops.push_back(op);
  std::sort(ops.begin(), ops.end());
  return ops;
}

namespace {

// The shape is what such a node is: there is no operand to infer it from.
bool is_written_by_a_pass(const ir::Node& node) {
  if (node.op.starts_with("tenon::")) return true;
  const bool is_view = node.is("Reshape") || node.is("Expand");
  return is_view && node.inputs.size() == 1 && !node.has("shape");
}

}  // namespace

void forget_declared_shapes(ir::Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    const auto rule = shape_rules().find(node.op);
    if (rule == shape_rules().end() || is_written_by_a_pass(node)) continue;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const bool is_told = rule->second.declared_outputs >> i & 1;
      if (node.outputs[i] != kNoValue && !is_told) graph.value(node.outputs[i]).shape.reset();
    }
  }
}

void infer_shapes(ir::Graph& graph) {
  ShapeInference inference(graph);
  for (ir::NodeId id : graph.order()) inference.infer(id);
}

}  // namespace tenon
