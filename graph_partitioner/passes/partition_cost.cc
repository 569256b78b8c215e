#include "graph_partitioner/passes/partition_cost.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "graph_partitioner/ir/channels_last.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/paged_attention.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/host_time.h"
#include "graph_partitioner/passes/stock_kernels.h"

namespace tenon {
namespace {

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

// Floats that stock kernels of the host multiply, too.
bool is_stock_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16; }

// Of such floats, with nothing to dequantise.
bool is_plain(const ir::Graph& graph, const ir::ScaledDot& dot) {
  return dot.scale_a.scale == ir::kNoValue && dot.scale_b.scale == ir::kNoValue &&
         dot.b_type == DType::kUndefined && is_stock_float(graph.value(dot.a).dtype) &&
         graph.value(dot.b).dtype == graph.value(dot.a).dtype;
}

Support no_gain(const std::string& why) {
  return Support::no(
      fmt::format("claiming it would gain nothing: {}; claim=all claims it all the same", why));
}

HostGain gain_with_weights_at_run(const Dim& rows, const ir::Value& b) {
  // Sizes that only a Run knows are those of activations: scores, a rotary's angles.
  const Dim elements = b.shape ? element_count(*b.shape) : Dim(0);
  if (!elements.is_constant() || elements.value() <= kMostRuntimeWeights) return {Support::yes()};
  if (rows.is_constant() && rows.value() >= kFewestRowsForRuntimeWeights) return {Support::yes()};
  return {no_gain(fmt::format(
              "its weights '{}' arrive at Run, and to pack them for {} rows costs more than the "
              "product",
              b.name, rows.is_constant() ? rows.text() : "an unknown number of")),
          elements.value() >= kManyRuntimeWeights};
}

HostGain gain_with_f16_weights(const Dim& rows, int64_t weights, bool decodes) {
  const bool step_of_decoder = decodes && !rows.is_constant();
  const bool cached = weights <= kMostCachedF16Weights;
  if (!cached && !rows.is(1) && !step_of_decoder) return {Support::yes()};
  const char* row = rows.is(1) ? "one row by " : cached ? "" : "the one row of a decode step by ";
  return {no_gain(fmt::format("stock kernels multiply {}{} plain weights of float16 as fast", row,
                              weights)),
          true};
}

}  // namespace

bool decodes(const ir::Graph& fused) {
  return std::any_of(fused.order().begin(), fused.order().end(), [&](ir::NodeId id) {
    const ir::Node& node = fused.node(id);
    return node.is(ir::kPagedAttention) ||
           (node.is(ir::kAttention) && ir::Attention::from(node).past_k != ir::kNoValue);
  });
}

HostGain product_gains_on_host(const ir::Graph& fused, const ir::Node& node, bool decodes) {
  if (!node.is(ir::kScaledDot)) return {Support::yes()};
  const ir::ScaledDot dot = ir::ScaledDot::from(node);
  if (!is_plain(fused, dot)) return {Support::yes()};
  const Dim rows = rows_of(fused, dot);
  const ir::Value& b = fused.value(dot.b);
  if (!b.is_constant()) return gain_with_weights_at_run(rows, b);
  if (b.dtype != DType::kF16) return {Support::yes()};
  return gain_with_f16_weights(rows, b.constant->elements(), decodes);
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
    return lacks_stock_kernel(cut, node) ||
           std::any_of(node.inputs.begin(), node.inputs.end(), is_rare) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), is_rare);
  });
}

namespace {

// Stock kernels multiply scores of float32 as fast, and those of float16 where queries are few.
bool is_plain(const ir::Graph& fused, const ir::Attention& attention) {
  const ir::Value& q = fused.value(attention.q);
  if (attention.has_codes() || !is_stock_float(q.dtype)) return false;
  if (q.dtype == DType::kF32) return true;
  const size_t axis = attention.q_layout.find('s');
  if (!q.shape || axis >= q.shape->size()) return false;
  const Dim& queries = (*q.shape)[axis];
  if (!queries.is_constant()) return attention.past_k != ir::kNoValue;
  return queries.value() < kFewestF16Queries;
}

bool multiplies(const ir::Node& node) {
  return node.is(ir::kScaledDot) || node.is(ir::kAttention) || node.is(ir::kPagedAttention) ||
         node.is("Conv") || node.is("ConvTranspose") || node.is("com.microsoft::FusedConv") ||
         node.is(ir::kChannelsLastConv);
}

}  // namespace

bool stock_multiplies_as_fast(const ir::Graph& fused, const ir::Node& node) {
  if (node.is(ir::kScaledDot)) {
    const ir::ScaledDot dot = ir::ScaledDot::from(node);
    if (!is_plain(fused, dot)) return false;
    const ir::Value& b = fused.value(dot.b);
    const bool is_f16_weight = b.dtype == DType::kF16 && b.is_constant();
    return !is_f16_weight || !product_gains_on_host(fused, node, false).support;
  }
  return node.is(ir::kAttention) && is_plain(fused, ir::Attention::from(node));
}

Support is_gainful(const ir::Graph& cut, const ir::Graph& fused, bool on_host) {
  if (only_we_can_run(cut)) return Support::yes();
  size_t in_one_loop = 0, in_all = 0;
  bool has_products = false;
  for (ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    if (multiplies(node)) {
      if (!on_host || !stock_multiplies_as_fast(fused, node)) return Support::yes();
      has_products = true;
      in_all += node.is(ir::kAttention) ? 1 : computing_sources(cut, node);
    } else if (node.body && computes(*node.body)) {
      const size_t sources = computing_sources(cut, node);
      in_one_loop = std::max(in_one_loop, sources);
      in_all += sources;
    }
  }
  if (in_one_loop >= kFewestFusedOps) return Support::yes();
  if (!has_products) {
    return no_gain(fmt::format(
        "no product, no attention, and at most {} arithmetic ops in one loop ({} pay off)",
        in_one_loop, kFewestFusedOps));
  }
  if (in_all >= kFewestFusedOps) return Support::yes();
  return no_gain(fmt::format(
      "stock kernels multiply plain floats as fast, and with them are {} arithmetic ops in all "
      "({} pay off)",
      in_all, kFewestFusedOps));
}

Support saves_time_on_host(const ir::Graph& whole, const ir::Graph& cut, const ir::Graph& fused) {
  if (only_we_can_run(cut)) return Support::yes();
  for (const int64_t size : {kSmallSize, kLargeSize}) {
    const HostTime time = host_time(whole, cut, fused, size);
    const double most = size == kSmallSize ? 1.0 : kMostOfStockTime;
    if (time.ours <= most * time.stock) continue;
    return no_gain(fmt::format(
        "with {} for each size that only a Run knows, it would take about {:.2f} of stock kernels' "
        "time",
        size, time.ours / time.stock));
  }
  return Support::yes();
}

}  // namespace tenon
