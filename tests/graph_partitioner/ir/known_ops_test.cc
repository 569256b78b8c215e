#include "graph_partitioner/ir/known_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/partition.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/decompose/rules.h"
#include "graph_partitioner/passes/normalize/rules.h"
#include "graph_partitioner/passes/scaled_dot_forms/forms.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon::ir {
namespace {

std::string_view first_attribute(const KnownOp& op) {
  return op.attributes.substr(0, op.attributes.find_first_of(" ="));
}

// A graph of one node with as many operands.
Graph one_node(const KnownOp& op, size_t inputs, size_t outputs) {
  Graph graph;
  Node node;
  node.op = op.op;
  node.since_version = 1;
  node.sources = {0};
  const auto value = [](const char* name) {
    Value value;
    value.name = name;
    value.dtype = DType::kF32;
    value.shape = Shape{2, 4};
    return value;
  };
  for (size_t i = 0; i < inputs; ++i) node.inputs.push_back(graph.add_input(value("x")));
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(graph.add_value(value("y")));
  for (const ValueId output : node.outputs) graph.add_output(output);
  graph.add_node(std::move(node));
  return graph;
}

// Why the node is left out where a kernel runs everything.
std::string reason(const Graph& graph) {
  const auto yes = [](const Graph&, const Node&) { return Support::yes(); };
  PartitionOptions options;
  options.claim_all = true;
  const Partitioning partitioning = partition(graph, yes, options);
  return partitioning.left_out.empty() ? "" : partitioning.left_out.front().reason;
}

TEST(KnownOps, AnAttributeOfTheNextRuntimeIsRefusedByName) {
  for (const KnownOp& op : known_ops()) {
    Graph graph = one_node(op, std::min<size_t>(op.inputs, 3), 1);
    graph.node(graph.order().front()).attributes["from_tomorrow"] = int64_t{0};
    EXPECT_EQ(reason(graph),
              "attribute 'from_tomorrow' of " + std::string(op.op) + " is not known");
  }
}

TEST(KnownOps, AnInputOrOutputMoreIsRefused) {
  for (const KnownOp& op : known_ops()) {
    if (op.inputs < 100) {
      const Graph graph = one_node(op, op.inputs + 1, 1);
      EXPECT_EQ(reason(graph), "input " + std::to_string(op.inputs) + " of " + std::string(op.op) +
                                   " is not known");
    }
    if (op.outputs < 100) {
      const Graph graph = one_node(op, std::min<size_t>(op.inputs, 3), op.outputs + 1);
      EXPECT_EQ(reason(graph), "output " + std::to_string(op.outputs) + " of " +
                                   std::string(op.op) + " is not known");
    }
  }
}

TEST(KnownOps, OperandsLeftOutAtTheEndDoNotCount) {
  Graph graph = one_node({"Relu", 1, 1, ""}, 1, 1);
  graph.node(graph.order().front()).inputs.push_back(kNoValue);
  EXPECT_TRUE(is_known(graph.node(graph.order().front())));
}

TEST(KnownOps, SomeAttributesAreKnownWithValuesThatChangeNothing) {
  Node node;
  node.op = "Attention";
  node.attributes["softmax_precision"] = int64_t{10};
  EXPECT_TRUE(is_known(node));
  node.attributes["softmax_precision"] = int64_t{11};
  EXPECT_EQ(is_known(node).reason, "attribute 'softmax_precision' of Attention is 11");
  node.op = "SpaceToDepth";
  node.attributes = {{"mode", std::string("CRD")}};
  EXPECT_EQ(is_known(node).reason, "attribute 'mode' of SpaceToDepth is CRD");
}

TEST(KnownOps, AttributesOfTheTableAreKnown) {
  for (const KnownOp& op : known_ops()) {
    if (op.attributes.empty() || op.attributes.find('=') != op.attributes.npos) continue;
    Node node;
    node.op = op.op;
    node.attributes[std::string(first_attribute(op))] = int64_t{1};
    EXPECT_TRUE(is_known(node)) << op.op;
  }
}

// Who reads an op must say what it knows of it.
TEST(KnownOps, CoverEveryRule) {
  std::set<std::string_view> known;
  for (const KnownOp& op : known_ops()) EXPECT_TRUE(known.insert(op.op).second) << op.op;
  const auto expect_known = [&](std::string_view op) {
    EXPECT_TRUE(op.starts_with("tenon::") || known.contains(op)) << op;
  };
  for (const auto rules :
       {normalization::view_rules(), normalization::reduction_rules(), normalization::opset_rules(),
        normalization::quantizer_rules(), normalization::einsum_rules(),
        scaled_dot_forms::plain_forms(), scaled_dot_forms::packed_weight_forms(),
        attention_forms::unfused_forms(), attention_forms::onnx_forms(),
        attention_forms::multi_head_forms(), attention_forms::group_query_forms(),
        attention_forms::paged_forms(), attention_forms::rotary_forms(),
        attention_forms::new_head_forms()}) {
    for (const NamedRewrite& rule : rules) expect_known(rule.op);
  }
  for (const auto rules : {decomposition::activation_rules(), decomposition::normalization_rules(),
                           decomposition::softmax_rules(), decomposition::quantization_rules(),
                           decomposition::movement_rules(), decomposition::position_rules(),
                           decomposition::variadic_rules()}) {
    for (const decomposition::NamedRule& rule : rules) expect_known(rule.op);
  }
  for (const auto rules :
       {pointwise_shape_rules(), movement_shape_rules(), slicing_shape_rules(), dot_shape_rules(),
        attention_shape_rules(), window_shape_rules(), quantize_shape_rules(), element_rules()}) {
    for (const ShapeRule& rule : rules) expect_known(rule.op);
  }
  for (const Primitive& primitive : primitives()) expect_known(primitive.op);
}

}  // namespace
}  // namespace tenon::ir
