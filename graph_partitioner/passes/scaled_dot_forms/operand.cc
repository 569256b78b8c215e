#include "graph_partitioner/passes/scaled_dot_forms/operand.h"

#include <algorithm>
#include <numeric>

#include "graph_partitioner/pattern.h"

namespace tenon::scaled_dot_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

bool is_wide_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool is_code(DType dtype) {
  return is_small_float(dtype) || (is_integer(dtype) && bit_width(dtype) <= 8);
}

bool is_scale_type(DType dtype) {
  return is_wide_float(dtype) || dtype == DType::kF8E4M3FN || dtype == DType::kF8E8M0;
}

bool swaps_last_two(const Node& node) {
  std::vector<int64_t> perm = node.integers("perm");
  if (perm.size() < 2) return false;
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return std::is_sorted(perm.begin(), perm.end());
}

bool has_one_element(const Graph& graph, ValueId id) {
  const auto& shape = graph.value(id).shape;
  return shape && element_count(*shape).is(1);
}

// Fills `scale` from a DequantizeLinear whose data is `k_axis`-major along K; false where it does
// not fit.
bool read_layout(const Graph& graph, const Node& node, size_t k_axis, ir::BlockScale& scale) {
  const auto& data = graph.value(node.input(0)).shape;
  const auto& own = graph.value(node.input(1)).shape;
  if (!data || !own || data->size() < 2) return false;
  const int64_t block = node.integer("block_size", 0);
  const auto axis = static_cast<size_t>(node.integer("axis", 1));
  if (block > 0) {
    if (axis != k_axis || own->size() != data->size()) return false;
    Shape expected = *data;
    expected[k_axis] = ceil_div((*data)[k_axis], block);
    scale.block = block;
    return *own == expected;
  }
  if (has_one_element(graph, node.input(1))) {
    scale.per_channel = false;
    return true;
  }
  // One scale per column: K must not be the axis that the scales run along.
  return data->size() == 2 && axis < 2 && axis != k_axis && own->size() == 1 &&
         (*own)[0] == (*data)[axis];
}

bool read_zero_point(const Graph& graph, const Node& node, ir::BlockScale& scale) {
  const ValueId zero = node.input(2);
  if (zero == kNoValue || is_constant_zero(graph, zero)) return true;
  if (!is_integer(graph.value(node.input(0)).dtype)) return false;  // floats have none but 0
  if (graph.value(zero).shape != graph.value(node.input(1)).shape) return false;
  scale.zero_point = zero;
  return true;
}

// The scale of blocks may itself be codes times one number, with a Cast behind it or none. Where
// the product is f32 the number leaves the blocks and multiplies the result; where it is rounded to
// 16 bits it stays with the codes, and packing rounds. Block scales keep their file's type either
// way.
void split_global_scale(const Graph& graph, Operand& operand, Side side) {
  const DType rounded = graph.value(operand.scale.scale).dtype;
  const Node* cast = graph.producer(operand.scale.scale);
  if (cast != nullptr && !cast->is("Cast")) cast = nullptr;
  const Node* node = graph.producer(cast ? cast->input(0) : operand.scale.scale);
  if (node == nullptr || !node->is("DequantizeLinear")) return;
  if (node->integer("block_size", 0) != 0 || !has_one_element(graph, node->input(1))) return;
  if (node->input(2) != kNoValue && !is_constant_zero(graph, node->input(2))) return;
  const ir::Value& codes = graph.value(node->input(0));
  const bool product_is_f32 = graph.value(node->output(0)).dtype == DType::kF32;
  const bool one_type = graph.value(node->input(1)).dtype == graph.value(node->output(0)).dtype;
  if (rounded == DType::kF32) {
    if (cast || !product_is_f32 || !one_type || !is_scale_type(codes.dtype)) return;
    operand.global = node->input(1);
  } else {
    const auto factor = scalar_constant(graph, node->input(1));
    const bool once = product_is_f32 || !cast;  // two roundings to 16 bits are not one
    const bool packs = side == Side::kRight && factor && once && codes.is_constant() &&
                       codes.dtype == DType::kF8E4M3FN && bit_width(rounded) == 16 &&
                       graph.value(operand.value).is_constant();
    if (!packs) return;
    operand.scale.rounded = rounded;
    operand.scale.factor = static_cast<float>(*factor);
  }
  operand.scale.scale = node->input(0);
  if (cast) operand.sources = ir::merge_sources(operand.sources, cast->sources);
  operand.sources = ir::merge_sources(operand.sources, node->sources);
}

std::optional<Operand> dequantized(const Graph& graph, const Node& node, Operand operand, Side side,
                                   Codes left) {
  const ir::Value& codes = graph.value(node.input(0));
  if (!is_code(codes.dtype) || !codes.shape || codes.shape->size() < 2) return std::nullopt;
  const bool finds_integers = side == Side::kRight || left == Codes::kSmallFloatsAndIntegers;
  if (!finds_integers && !is_small_float(codes.dtype)) return std::nullopt;
  const size_t rank = codes.shape->size();
  const bool k_last = (side == Side::kLeft) != operand.swapped;
  if (!read_layout(graph, node, k_last ? rank - 1 : rank - 2, operand.scale)) return std::nullopt;
  if (!read_zero_point(graph, node, operand.scale)) return std::nullopt;
  operand.value = node.input(0);
  operand.scale.scale = node.input(1);
  operand.sources = ir::merge_sources(operand.sources, node.sources);
  if (node.has("scale_type")) {
    operand.scale.scale_type = parse_dtype(node.text("scale_type", "")).value_or(DType::kUndefined);
  } else {
    split_global_scale(graph, operand, side);
    if (!is_scale_type(graph.value(operand.scale.scale).dtype)) return std::nullopt;
  }
  return operand;
}

}  // namespace

Operand trace_operand(const Graph& graph, ValueId value, Side side, bool swapped, Codes left) {
  Operand plain;  // where to stop if no dequantisation is found
  plain.value = value;
  plain.swapped = swapped;
  Operand here = plain;
  bool casted = false;
  while (const Node* node = graph.producer(here.value)) {
    if (node->is("DequantizeLinear")) {
      return dequantized(graph, *node, here, side, left).value_or(plain);
    }
    if (node->is("Cast")) {
      if (!is_wide_float(graph.value(node->input(0)).dtype)) break;
      casted = true;
    } else if (node->is("Transpose") && swaps_last_two(*node)) {
      here.swapped = !here.swapped;
    } else {
      break;
    }
    here.value = node->input(0);
    here.sources = ir::merge_sources(here.sources, node->sources);
    // A transposed left side would be read against the grain; a transposed right side is free.
    if (!casted && side == Side::kRight) plain = here;
  }
  return plain;
}

}  // namespace tenon::scaled_dot_forms
