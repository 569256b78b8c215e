#include "graph_partitioner/passes/partition_cost.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/paged_attention.h"
#include "graph_partitioner/ir/primitives.h"

namespace tenon {
namespace {

constexpr std::string_view kWithoutStockKernel[] = {
    "com.microsoft::MatMulBlockQuantizedFp4Weight",
    "com.microsoft::MatMulBlockQuantizedFp8Weight",
};

bool lacks_stock_kernel(const ir::Node& node) {
  return node.op.rfind("trt::", 0) == 0 ||
         std::find(std::begin(kWithoutStockKernel), std::end(kWithoutStockKernel), node.op) !=
             std::end(kWithoutStockKernel);
}

bool computes(const ir::Graph& body) {
  return std::any_of(body.order().begin(), body.order().end(), [&](ir::NodeId id) {
    const ir::Primitive* primitive = ir::find_primitive(body.node(id).op);
    return primitive && primitive->kind != ir::PrimitiveClass::kMovement;
  });
}

// Sources of a loop that stand for arithmetic in the imported graph, not for views or shapes.
size_t computing_sources(const ir::Graph& cut, const ir::Node& loop) {
  constexpr std::string_view kMoves[] = {
      "Reshape", "Transpose", "Slice",  "Squeeze",  "Unsqueeze",      "Flatten", "Expand",
      "Gather",  "Split",     "Concat", "Identity", "Shape",          "Size",    "Tile",
      "Pad",     "Constant",  "Range",  "Cast",     "ConstantOfShape"};
  size_t count = 0;
  for (ir::NodeId id : cut.order()) {
    const ir::Node& node = cut.node(id);
    const bool moves = std::find(std::begin(kMoves), std::end(kMoves), node.op) != std::end(kMoves);
    const bool listed = std::any_of(node.sources.begin(), node.sources.end(), [&](int source) {
      return std::binary_search(loop.sources.begin(), loop.sources.end(), source);
    });
    count += listed && !moves ? 1 : 0;
  }
  return count;
}

// Rows that one weight is multiplied by; not constant where nobody knows.
Dim rows_of(const ir::Graph& graph, const ir::ScaledDot& dot) {
  const auto& a = graph.value(dot.a).shape;
  const auto& b = graph.value(dot.b).shape;
  if (!a || !b || a->size() < 2 || b->size() < 2) return Dim::symbol("?");
  const size_t m = a->size() - (dot.a_k_first ? 1 : 2);
  Dim rows = (*a)[m];
  if (b->size() > 2) return rows;  // a weight for each of the batch
  for (size_t axis = 0; axis + 2 < a->size(); ++axis) rows = rows * (*a)[axis];
  return rows;
}

// Of floats that stock providers multiply too, with nothing to decode.
bool is_plain(const ir::Graph& graph, const ir::ScaledDot& dot) {
  return dot.scale_a.scale == ir::kNoValue && dot.scale_b.scale == ir::kNoValue &&
         dot.b_type == DType::kUndefined && graph.value(dot.a).dtype == DType::kF32 &&
         graph.value(dot.b).dtype == DType::kF32;
}

}  // namespace

HostGain product_gains_on_host(const ir::Graph& fused, const ir::Node& node) {
  if (!node.is(ir::kScaledDot)) return {Support::yes()};
  const ir::ScaledDot dot = ir::ScaledDot::from(node);
  if (!is_plain(fused, dot)) return {Support::yes()};
  const Dim rows = rows_of(fused, dot);
  const ir::Value& b = fused.value(dot.b);
  if (!b.is_constant()) {
    // Sizes that only a Run knows are those of activations: scores, a rotary's angles.
    const Dim elements = b.shape ? element_count(*b.shape) : Dim(0);
    if (!elements.is_constant() || elements.value() <= kMostRuntimeWeights) return {Support::yes()};
    if (rows.is_constant() && rows.value() >= kFewestRowsForRuntimeWeights) return {Support::yes()};
    return {Support::no(fmt::format(
                "claiming it would gain nothing: its weights '{}' arrive at Run, and to pack them "
                "for {} rows costs more than the product; claim=all claims it all the same",
                b.name, rows.is_constant() ? rows.text() : "an unknown number of")),
            elements.value() >= kManyRuntimeWeights};
  }
  const int64_t weights = b.constant->elements();
  if (rows.is(1) && weights > kMostPlainWeightsForOneRow) {
    return {Support::no(
        fmt::format("claiming it would gain nothing: one row by {} plain weights only reads them, "
                    "which stock kernels do as fast; claim=all claims it all the same",
                    weights))};
  }
  return {Support::yes()};
}

namespace {

bool is_bytes(const ir::Graph& graph, ir::ValueId id) {
  const DType dtype = graph.value(id).dtype;
  return dtype == DType::kI8 || dtype == DType::kU8;
}

// Whole tensors or columns, as stock kernels take them.
bool dequantises_bytes(const ir::Graph& graph, const ir::Node* node) {
  return node && node->is("DequantizeLinear") && node->integer("block_size", 0) == 0 &&
         is_bytes(graph, node->inputs[0]);
}

}  // namespace

std::vector<ir::NodeId> integer_product(const ir::Graph& imported, ir::NodeId product) {
  const ir::Node& node = imported.node(product);
  if (!node.is("MatMul") || node.inputs.size() != 2) return {};
  std::vector<ir::NodeId> group = {product};
  for (const ir::ValueId operand : node.inputs) {
    if (!dequantises_bytes(imported, imported.producer(operand))) return {};
    group.push_back(imported.value(operand).producer);
  }
  const ir::Node& left = imported.node(group[1]);
  if (imported.value(left.inputs[0]).is_constant()) return {};
  const std::vector<ir::NodeId> readers = imported.consumers(node.outputs[0]);
  if (readers.size() == 1 && imported.node(readers[0]).is("QuantizeLinear") &&
      is_bytes(imported, imported.node(readers[0]).outputs[0])) {
    group.push_back(readers[0]);
  }
  return group;
}

bool is_product(const ir::Node& imported) {
  constexpr std::string_view kProducts[] = {"MatMul", "Gemm", "com.microsoft::FusedMatMul"};
  return std::find(std::begin(kProducts), std::end(kProducts), imported.op) != std::end(kProducts);
}

bool only_we_can_run(const ir::Graph& cut) {
  const auto is_rare = [&](ir::ValueId id) {
    if (id == ir::kNoValue) return false;
    const DType dtype = cut.value(id).dtype;
    return is_small_float(dtype) || is_packed(dtype);
  };
  return std::any_of(cut.order().begin(), cut.order().end(), [&](ir::NodeId id) {
    const ir::Node& node = cut.node(id);
    return lacks_stock_kernel(node) ||
           std::any_of(node.inputs.begin(), node.inputs.end(), is_rare) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), is_rare);
  });
}

Support is_gainful(const ir::Graph& cut, const ir::Graph& fused) {
  if (only_we_can_run(cut)) return Support::yes();
  size_t most = 0;
  for (ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    if (node.is(ir::kScaledDot) || node.is(ir::kAttention) || node.is(ir::kPagedAttention)) {
      return Support::yes();
    }
    if (node.body && computes(*node.body)) most = std::max(most, computing_sources(cut, node));
  }
  if (most >= kFewestFusedOps) return Support::yes();
  return Support::no(fmt::format(
      "claiming it would gain nothing: no product, no attention, and at most {} arithmetic ops in "
      "one loop ({} pay off); claim=all claims it all the same",
      most, kFewestFusedOps));
}

}  // namespace tenon
