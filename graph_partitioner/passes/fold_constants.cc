#include "graph_partitioner/passes/fold_constants.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/checked.h"
#include "base/convert.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/fold/evaluate.h"
#include "graph_partitioner/passes/infer_shapes.h"

namespace tenon {
namespace {

using ir::kNoValue;

// Dots absorb a transposed weight: rewriting a large one would only cost time and memory.
constexpr size_t kMaxMovedBytes = size_t{64} << 10;

// Operands that kernels take as constants only, or in a packed type only as constants; and indices,
// which a kernel reads from memory, so that another would have to write them before.
struct WantsConstants {
  std::string_view op;
  std::initializer_list<size_t> inputs;
};
constexpr WantsConstants kWantsConstants[] = {
    {"DequantizeLinear", {0, 1, 2}},
    {"trt::TRT_FP4QDQ", {0}},
    {"com.microsoft::MatMulNBits", {1, 2, 3}},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", {1, 2}},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", {1, 2}},
    {"com.microsoft::GatherBlockQuantized", {0, 2, 3}},
    {"Gather", {1}},
    {ir::kPick, {1}},
    {ir::kScaledDot, {1, 4, 5}},
};

// Numbers are multiplied also where they are made at Run.
bool has_plain_weight(const ir::Graph& graph, const ir::Node& node) {
  if (!node.is(ir::kScaledDot) || node.input(1) == kNoValue) return false;
  return bit_width(graph.value(node.input(1)).dtype) > 8;
}

// Nodes whose result decides what is claimed: however large it is, it folds.
std::set<ir::NodeId> nodes_behind_weights(const ir::Graph& graph) {
  std::set<ir::NodeId> wanted;
  const std::vector<ir::NodeId>& order = graph.order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const ir::Node& node = graph.node(*id);
    const auto want = [&](ir::ValueId input) {
      if (input != kNoValue && graph.producer(input)) wanted.insert(graph.value(input).producer);
    };
    if (wanted.contains(*id)) std::ranges::for_each(node.inputs, want);
    for (const WantsConstants& reader : kWantsConstants) {
      if (!node.is(reader.op) || has_plain_weight(graph, node)) continue;
      for (const size_t input : reader.inputs) want(node.input(input));
    }
  }
  return wanted;
}

bool is_small(DType dtype, const Shape& shape, size_t limit) {
  return bit_width(dtype) != 0 && storage_bytes(dtype, element_count(shape).value()) <= limit;
}

ir::TensorPtr from_elements(const ir::Value& value) {
  if (!value.elements || !is_static(*value.elements) || !value.shape || !is_static(*value.shape)) {
    return nullptr;
  }
  const std::vector<int64_t> elements = static_dims(*value.elements);
  return folding::tensor_of_codes(value.dtype, static_dims(*value.shape), [&](int64_t i) {
    const auto code = static_cast<uint64_t>(elements[static_cast<size_t>(i)]);
    const int width = bit_width(value.dtype);
    return width == 64 ? code : code & ((uint64_t{1} << width) - 1);
  });
}

ir::TensorPtr from_constant_node(const ir::Node& node) {
  if (node.has("value")) return node.tensor("value");
  const auto list = [](DType dtype, const auto& values, std::vector<int64_t> dims) {
    return ir::Tensor::of(dtype, std::move(dims),
                          std::vector<double>(values.begin(), values.end()));
  };
  if (node.has("value_float")) {
    return list(DType::kF32, std::vector<float>{node.number("value_float", 0)}, {});
  }
  if (node.has("value_floats")) {
    const auto values = node.numbers("value_floats");
    return list(DType::kF32, values, {static_cast<int64_t>(values.size())});
  }
  return nullptr;  // integers come as elements
}

ir::TensorPtr from_operands(const ir::Graph& graph, const ir::Node& node, const ir::Value& result,
                            bool any_size) {
  constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
  folding::Evaluate evaluate = folding::find_arithmetic(node.op);
  // What is made of nothing costs a kernel nothing, but for indices, and has no size to speak of.
  const bool is_made_here = node.inputs.empty();
  if (is_made_here && !any_size) return nullptr;
  const size_t limit = any_size && !is_made_here ? kNoLimit
                       : evaluate                ? kMaxFoldedBytes
                                                 : kMaxMovedBytes;
  if (!evaluate) evaluate = folding::find_movement(node.op);
  if (!evaluate || !result.shape || !is_static(*result.shape)) return nullptr;
  if (!is_small(result.dtype, *result.shape, limit)) return nullptr;
  folding::Operands operands{node, {}, result.dtype, static_dims(*result.shape)};
  for (ir::ValueId input : node.inputs) {
    if (input == kNoValue) {
      operands.inputs.push_back(nullptr);
      continue;
    }
    const ir::Value& value = graph.value(input);
    if (!value.is_constant() || !value.constant->stands_for.empty()) return nullptr;
    operands.inputs.push_back(value.constant);
  }
  return is_made_here || operands.inputs[0] ? evaluate(operands) : nullptr;
}

ir::TensorPtr value_of(const ir::Graph& graph, const ir::Node& node, ir::ValueId output,
                       bool any_size) {
  try {
    if (node.body) return nullptr;
    const ir::Value& result = graph.value(output);
    if (ir::TensorPtr known = from_elements(result)) return known;
    return node.is("Constant") ? from_constant_node(node)
                               : from_operands(graph, node, result, any_size);
  } catch (const UserError&) {
    return nullptr;  // sizes that overflow, attributes of the wrong type: the runtime reports them
  }
}

void replace_by_constant(ir::Graph& graph, ir::NodeId id, ir::ValueId output,
                         ir::TensorPtr tensor) {
  for (ir::NodeId consumer : graph.consumers(output)) {
    ir::Node& taker = graph.node(consumer);
    taker.sources = ir::merge_sources(taker.sources, graph.node(id).sources);
  }
  const std::string name = graph.value(output).name;
  const ir::ValueId constant = graph.add_constant(name, std::move(tensor));
  graph.replace_uses(output, constant);
  graph.rename(output, "");
  graph.rename(constant, name);
}

}  // namespace

void fold_constants(ir::Graph& graph) {
  ShapeInference inference(graph);
  const std::set<ir::NodeId> behind_weights = nodes_behind_weights(graph);
  const std::vector<ir::NodeId> order = graph.order();
  for (ir::NodeId id : order) {
    inference.infer(id);
    const std::vector<ir::ValueId> outputs = graph.node(id).outputs;
    for (ir::ValueId output : outputs) {
      if (output == kNoValue || graph.is_output(output)) continue;
      ir::TensorPtr tensor = value_of(graph, graph.node(id), output, behind_weights.contains(id));
      const bool fits = tensor && tensor->dtype == graph.value(output).dtype;
      if (fits) replace_by_constant(graph, id, output, std::move(tensor));
    }
  }
  graph.remove_dead_nodes();
}

}  // namespace tenon
