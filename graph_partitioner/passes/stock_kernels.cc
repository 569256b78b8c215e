#include "graph_partitioner/passes/stock_kernels.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "graph_partitioner/ir/collectives.h"

namespace tenon {
namespace {

using ir::kNoNode;
using ir::kNoValue;

// Which inputs are dequantised, by their places; a result is quantised, or may stay float.
enum class Operands { kFirst, kSecondAndThird, kEach };
enum class Results { kQuantised, kEither, kFloat };

struct IntegerForm {
  std::string_view op;
  Operands operands;
  Results results;
  std::string_view becomes;
};

// What the runtime looks for behind the partitioning. It asks more of types, scales and zero points
// than is asked here: a group that it does not take after all runs as it would without us.
constexpr IntegerForm kForms[] = {
    {"Add", Operands::kEach, Results::kQuantised, "QLinearAdd"},
    {"ArgMax", Operands::kFirst, Results::kFloat, "ArgMax of integers"},
    {"AveragePool", Operands::kEach, Results::kQuantised, "QLinearAveragePool"},
    {"Concat", Operands::kEach, Results::kQuantised, "QLinearConcat"},
    {"Conv", Operands::kEach, Results::kQuantised, "QLinearConv"},
    {"DepthToSpace", Operands::kFirst, Results::kQuantised, "DepthToSpace of integers"},
    {"Expand", Operands::kFirst, Results::kQuantised, "Expand of integers"},
    {"Flatten", Operands::kFirst, Results::kQuantised, "Flatten of integers"},
    {"Gather", Operands::kFirst, Results::kQuantised, "Gather of integers"},
    {"GatherElements", Operands::kFirst, Results::kQuantised, "GatherElements of integers"},
    {"Gemm", Operands::kEach, Results::kEither, "QGemm"},
    {"GlobalAveragePool", Operands::kEach, Results::kQuantised, "QLinearGlobalAveragePool"},
    {"LeakyRelu", Operands::kEach, Results::kQuantised, "QLinearLeakyRelu"},
    {"MatMul", Operands::kEach, Results::kEither, "product of integers"},
    {"MaxPool", Operands::kFirst, Results::kQuantised, "MaxPool of integers"},
    {"Mul", Operands::kEach, Results::kQuantised, "QLinearMul"},
    {"ReduceMax", Operands::kFirst, Results::kQuantised, "ReduceMax of integers"},
    {"ReduceMin", Operands::kFirst, Results::kQuantised, "ReduceMin of integers"},
    {"Reshape", Operands::kFirst, Results::kQuantised, "Reshape of integers"},
    {"Resize", Operands::kFirst, Results::kQuantised, "Resize of integers"},
    {"Sigmoid", Operands::kEach, Results::kQuantised, "QLinearSigmoid"},
    {"Slice", Operands::kFirst, Results::kQuantised, "Slice of integers"},
    {"Softmax", Operands::kEach, Results::kQuantised, "QLinearSoftmax"},
    {"Split", Operands::kFirst, Results::kQuantised, "Split of integers"},
    {"Squeeze", Operands::kFirst, Results::kQuantised, "Squeeze of integers"},
    {"Tile", Operands::kFirst, Results::kQuantised, "Tile of integers"},
    {"Transpose", Operands::kFirst, Results::kQuantised, "Transpose of integers"},
    {"Unsqueeze", Operands::kFirst, Results::kQuantised, "Unsqueeze of integers"},
    {"Where", Operands::kSecondAndThird, Results::kQuantised, "QLinearWhere"},
};

constexpr std::string_view kIntegerProducts[] = {"ConvInteger", "MatMulInteger", "QLinearMatMul",
                                                 "com.microsoft::MatMulIntegerToFloat"};

bool is_listed(const auto& list, std::string_view op) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

bool is_quantised(const ir::Graph& graph, ir::ValueId id) {
  const DType dtype = graph.value(id).dtype;
  return dtype == DType::kI8 || dtype == DType::kU8 || dtype == DType::kI16 || dtype == DType::kU16;
}

bool dequantises(const ir::Node& node) {
  return node.is("DequantizeLinear") || node.is("com.microsoft::DequantizeLinear");
}

bool quantises(const ir::Node& node) {
  return node.is("QuantizeLinear") || node.is("com.microsoft::QuantizeLinear");
}

// Whole tensors or channels with scales of float32, as stock kernels of integers take them. Biases
// are of 32 bits.
bool has_integers_for(const ir::Graph& graph, ir::ValueId operand, bool is_first) {
  const ir::Node* node = graph.producer(operand);
  if (!node || !dequantises(*node) || node->integer("block_size", 0) != 0) return false;
  if (graph.value(node->inputs[1]).dtype != DType::kF32) return false;
  return is_quantised(graph, node->inputs[0]) ||
         (!is_first && graph.value(node->inputs[0]).dtype == DType::kI32);
}

std::vector<ir::ValueId> operands_of(const ir::Node& node, Operands which) {
  if (which == Operands::kFirst) return {node.input(0)};
  if (which == Operands::kSecondAndThird) return {node.input(1), node.input(2)};
  std::vector<ir::ValueId> operands = node.inputs;
  std::erase(operands, kNoValue);
  return operands;
}

// What dequantises the operands of the form; nullopt where one is not dequantised.
std::optional<std::vector<ir::NodeId>> dequantisers(const ir::Graph& graph, const ir::Node& node,
                                                    const IntegerForm& form) {
  std::vector<ir::NodeId> result;
  for (const ir::ValueId operand : operands_of(node, form.operands)) {
    if (operand == kNoValue || !has_integers_for(graph, operand, result.empty())) {
      return std::nullopt;
    }
    result.push_back(graph.value(operand).producer);
  }
  return result;
}

// The one node that quantises `value`, and a Relu or Clip in front of it, which the runtime drops
// where the integers saturate there. Empty where there is none.
std::vector<ir::NodeId> quantiser(const ir::Graph& graph, ir::ValueId value) {
  std::vector<ir::NodeId> found;
  for (;;) {
    const std::vector<ir::NodeId> readers = graph.consumers(value);
    if (readers.size() != 1 || graph.is_output(value)) return {};
    const ir::Node& reader = graph.node(readers[0]);
    found.push_back(readers[0]);
    if (quantises(reader)) {
      return is_quantised(graph, reader.outputs[0]) ? found : std::vector<ir::NodeId>{};
    }
    if (found.size() > 1 || !(reader.is("Relu") || reader.is("Clip"))) return {};
    value = reader.outputs[0];
  }
}

std::string no_gain(std::string_view what) {
  return fmt::format(
      "claiming it would gain nothing: {}; claim=all claims what has a kernel of ours", what);
}

std::optional<IntegerGroup> quantised_group(const ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph.node(id);
  const auto form = std::find_if(std::begin(kForms), std::end(kForms),
                                 [&](const IntegerForm& one) { return one.op == node.op; });
  if (form == std::end(kForms)) return std::nullopt;
  const auto operands = dequantisers(graph, node, *form);
  if (!operands) return std::nullopt;
  IntegerGroup group{{id}, ""};
  group.nodes.insert(group.nodes.end(), operands->begin(), operands->end());
  bool all_quantised = form->results != Results::kFloat;
  for (const ir::ValueId output : node.outputs) {
    if (output == kNoValue || !all_quantised) continue;
    const std::vector<ir::NodeId> found = quantiser(graph, output);
    all_quantised = !found.empty();
    group.nodes.insert(group.nodes.end(), found.begin(), found.end());
  }
  if (!all_quantised) {
    if (form->results == Results::kQuantised) return std::nullopt;
    group.nodes.resize(1 + operands->size());
  }
  group.reason = no_gain(fmt::format("stock kernels run DequantizeLinear, {}{} as one {}", node.op,
                                     all_quantised ? " and QuantizeLinear" : "", form->becomes));
  return group;
}

// Appends the only reader of a node's first result, if it is one of `op`.
bool append_reader(const ir::Graph& graph, std::string_view op, std::vector<ir::NodeId>& chain) {
  const ir::ValueId value = graph.node(chain.back()).outputs[0];
  const std::vector<ir::NodeId> readers = graph.consumers(value);
  if (readers.size() != 1 || graph.is_output(value) || !graph.node(readers[0]).is(op)) return false;
  chain.push_back(readers[0]);
  return true;
}

// ConvInteger or MatMulInteger → Cast → Mul by both scales → Add of a bias, as dynamic quantisers
// write it, and what makes the integers and the product of the scales.
IntegerGroup integer_product(const ir::Graph& graph, ir::NodeId id) {
  IntegerGroup group{{id}, no_gain("stock kernels multiply 8-bit integers as such")};
  const auto append_producer = [&](ir::ValueId value, std::string_view op) {
    const ir::Node* producer = graph.producer(value);
    if (!producer || !producer->is(op)) return;
    const ir::NodeId node = graph.value(value).producer;
    if (std::find(group.nodes.begin(), group.nodes.end(), node) == group.nodes.end()) {
      group.nodes.push_back(node);
    }
  };
  if (append_reader(graph, "Cast", group.nodes) && append_reader(graph, "Mul", group.nodes)) {
    const ir::Node& scaling = graph.node(group.nodes.back());
    append_reader(graph, "Add", group.nodes);
    for (const ir::ValueId factor : scaling.inputs) append_producer(factor, "Mul");
  }
  append_producer(graph.node(id).input(0), "DynamicQuantizeLinear");
  return group;
}

}  // namespace

std::vector<IntegerGroup> integer_groups(const ir::Graph& imported) {
  std::vector<IntegerGroup> groups;
  for (const ir::NodeId id : imported.order()) {
    if (is_listed(kIntegerProducts, imported.node(id).op)) {
      groups.push_back(integer_product(imported, id));
    } else if (auto group = quantised_group(imported, id)) {
      groups.push_back(std::move(*group));
    }
  }
  return groups;
}

namespace {

// The left one of the nodes that read `node`'s results; kNoNode where there is none.
ir::NodeId left_reader(const ir::Graph& graph, const ir::Node& node, const IsLeft& is_left) {
  for (const ir::ValueId output : node.outputs) {
    if (output == kNoValue) continue;
    for (const ir::NodeId reader : graph.consumers(output)) {
      if (is_left(reader)) return reader;
    }
  }
  return kNoNode;
}

bool all_readers_are_left(const ir::Graph& graph, const ir::Node& node, const IsLeft& is_left) {
  return left_reader(graph, node, [&](ir::NodeId id) { return !is_left(id); }) == kNoNode;
}

ir::NodeId left_producer(const ir::Graph& graph, const ir::Node& node, const IsLeft& is_left) {
  const ir::NodeId producer = graph.value(node.inputs[0]).producer;
  return producer != kNoNode && is_left(producer) ? producer : kNoNode;
}

}  // namespace

ir::NodeId served_by_others(const ir::Graph& imported, ir::NodeId quantiser,
                            const IsLeft& is_left) {
  const ir::Node& node = imported.node(quantiser);
  const bool dynamic = node.is("DynamicQuantizeLinear");
  if (!dequantises(node) && !quantises(node) && !dynamic) return kNoNode;
  const ir::ValueId codes = dequantises(node) ? node.inputs[0] : node.outputs[0];
  if (is_small_float(imported.value(codes).dtype)) return kNoNode;
  const ir::NodeId producer = left_producer(imported, node, is_left);
  const ir::NodeId reader = left_reader(imported, node, is_left);
  // What it quantises comes from there, or the codes do; and whoever reads codes dequantises them.
  if (producer != kNoNode && !dynamic) return producer;
  if (quantises(node) && reader != kNoNode) return reader;
  return all_readers_are_left(imported, node, is_left) ? reader : kNoNode;
}

namespace {

constexpr std::string_view kWithoutStockKernel[] = {
    "com.microsoft::GroupNorm",
    "com.microsoft::MatMulBlockQuantizedFp4Weight",
    "com.microsoft::MatMulBlockQuantizedFp8Weight",
    "com.microsoft::PagedAttention",
};

// Of bfloat16 the CPU provider moves and casts, and computes nothing.
constexpr std::string_view kRunsBfloat16[] = {
    "Cast",     "Concat",    "ConstantOfShape", "Expand",    "Flatten", "Gather",  "GatherElements",
    "Identity", "Reshape",   "Shape",           "Size",      "Slice",   "Split",   "Squeeze",
    "Tile",     "Transpose", "Unsqueeze",       "ScatterND", "IsNaN",   "Constant"};

bool has_rank(const ir::Graph& graph, ir::ValueId id, size_t rank) {
  return id != kNoValue && graph.value(id).shape && graph.value(id).shape->size() == rank;
}

// Forms that the kernel of the op refuses when it runs.
bool is_refused_form(const ir::Graph& graph, const ir::Node& node) {
  if (node.is("com.microsoft::GroupQueryAttention")) {
    constexpr size_t kQNormWeight = 14, kKNormWeight = 15;
    return node.input(kQNormWeight) != kNoValue || node.input(kKNormWeight) != kNoValue;
  }
  if (node.is("com.microsoft::MultiHeadAttention")) {  // heads of q, k and v in one tensor
    constexpr size_t kPackedRank = 5;
    return has_rank(graph, node.input(0), kPackedRank) ||
           has_rank(graph, node.input(1), kPackedRank);
  }
  return false;
}

}  // namespace

bool lacks_stock_kernel(const ir::Graph& imported, const ir::Node& node) {
  if (node.op.rfind("trt::", 0) == 0 || ir::is_imported_collective(node) ||
      is_listed(kWithoutStockKernel, node.op) || is_refused_form(imported, node)) {
    return true;
  }
  const auto is_bfloat16 = [&](ir::ValueId id) {
    return id != kNoValue && imported.value(id).dtype == DType::kBF16;
  };
  return !is_listed(kRunsBfloat16, node.op) &&
         (std::any_of(node.inputs.begin(), node.inputs.end(), is_bfloat16) ||
          std::any_of(node.outputs.begin(), node.outputs.end(), is_bfloat16));
}

}  // namespace tenon
