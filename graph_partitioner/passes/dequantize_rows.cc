#include "graph_partitioner/passes/dequantize_rows.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/decompose/emitter.h"
#include "graph_partitioner/passes/scaled_dot_forms/operand.h"
#include "graph_partitioner/pattern.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::ValueId;
using scaled_dot_forms::Codes;
using scaled_dot_forms::Operand;
using scaled_dot_forms::Side;

// A scale that multiplies sums of codes instead of rows must leave them far from the ends of f32.
constexpr double kSmallestAlpha = 0x1p-60, kLargestAlpha = 0x1p60;

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

DType scale_type(const Graph& graph, const ir::BlockScale& scale) {
  return scale.scale_type != DType::kUndefined ? scale.scale_type : graph.value(scale.scale).dtype;
}

// The one scale of a whole operand, where it may multiply the result instead.
std::optional<double> factor_of_result(const Graph& graph, const ir::BlockScale& scale) {
  if (scale.per_channel || scale.scale_type != DType::kUndefined) return std::nullopt;
  const auto number = scalar_constant(graph, scale.scale);
  const bool fits = number && *number >= kSmallestAlpha && *number <= kLargestAlpha;
  return fits ? number : std::nullopt;
}

// Whether every code times every scale of its block is a number of that type.
bool holds_products(const Graph& graph, DType codes, const ir::BlockScale& scale, DType type) {
  const DType scales = scale_type(graph, scale);
  if (!is_small_float(codes)) return false;
  if (scales == DType::kF8E8M0) return type == DType::kBF16;
  return codes == DType::kF4E2M1 && scales == DType::kF8E4M3FN;
}

class RowDequantizer {
 public:
  RowDequantizer(Graph& graph, NodeId id, const SupportsFn& supports)
      : graph_(graph), id_(id), supports_(supports), dot_(ScaledDot::from(graph.node(id))) {}

  void run() {
    if (!find_codes() || is_read_as_it_is()) return;
    for (const Rows& rows : ways()) {
      ScaledDot wanted = dot_;
      dequantize(rows, wanted);
      if (!takes(wanted)) continue;
      Node& node = graph_.node(id_);
      wanted.write_to(node);
      node.sources = ir::merge_sources(node.sources, sources_);
      return;
    }
  }

 private:
  // Codes as the left side of `dot_`: they are already, or stand behind a DequantizeLinear, and
  // perhaps behind the view that a Gemm made of more dimensions.
  bool find_codes() {
    if (dot_.result != DType::kF32 && !is_half(dot_.result)) return false;
    if (dot_.scale_a.scale != kNoValue) return true;
    const ValueId whole = before_flattened();
    const Operand found =
        trace_operand(graph_, whole, Side::kLeft, dot_.a_k_first, Codes::kSmallFloatsAndIntegers);
    if (found.scale.scale == kNoValue) return false;
    // In 16 bits integers are one term as they are.
    const bool gains = dot_.result == DType::kF32 && factor_of_result(graph_, found.scale);
    if (is_integer(graph_.value(found.value).dtype) && !gains) return false;
    if (!take_global_scale(found.global)) return false;
    if (whole != dot_.a) {
      if (found.swapped) return false;
      flat_ = graph_.value(dot_.a).shape;
    }
    dot_.a = found.value;
    dot_.scale_a = found.scale;
    dot_.a_k_first = found.swapped;
    sources_ = found.sources;
    return true;
  }

  // One f32 that multiplies every scale of a block multiplies the result.
  bool take_global_scale(ValueId global) {
    if (global == kNoValue) return true;
    if (const auto number = scalar_constant(graph_, global)) {
      dot_.alpha_constant *= static_cast<float>(*number);
      return true;
    }
    if (dot_.alpha != kNoValue) return false;
    dot_.alpha = global;
    return true;
  }

  // Rows of as many elements, in more dimensions.
  ValueId before_flattened() const {
    ValueId rows = dot_.a;
    while (const Node* view = graph_.producer(rows)) {
      const auto &to = graph_.value(rows).shape, &from = graph_.value(view->input(0)).shape;
      const bool keeps_rows = view->is("Reshape") && !dot_.a_k_first && to && from &&
                              from->size() >= 2 && to->back() == from->back();
      if (!keeps_rows) break;
      rows = view->input(0);
    }
    return rows;
  }

  // A kernel multiplies codes; such kernels run no epilogue, and none is going to be fused.
  bool is_read_as_it_is() const {
    const std::vector<NodeId> readers = graph_.consumers(graph_.node(id_).output(0));
    const bool ends = std::ranges::all_of(readers, [&](NodeId reader) {
      return graph_.node(reader).is(ir::kScaledDot) || graph_.node(reader).is(ir::kAttention);
    });
    return ends && !flat_ && takes(dot_);
  }

  struct Rows {
    DType type;
    std::optional<double> factor;  // of the result, instead of a scale of the rows
  };

  // Those that hold every number, then what the model says. Its own type comes first: weights of
  // integers may then be rounded as it rounds them.
  std::vector<Rows> ways() const {
    const DType codes = graph_.value(dot_.a).dtype;
    const auto factor = factor_of_result(graph_, dot_.scale_a);
    std::vector<DType> halves = {DType::kF16, DType::kBF16};
    if (dot_.result == DType::kBF16) std::swap(halves[0], halves[1]);
    std::vector<Rows> ways;
    for (const DType type : halves) {
      if (factor || holds_products(graph_, codes, dot_.scale_a, type))
        ways.push_back({type, factor});
    }
    if (!is_integer(codes)) ways.push_back({dot_.result, std::nullopt});
    return ways;
  }

  // `wanted`: becomes the dot of such rows.
  void dequantize(const Rows& rows, ScaledDot& wanted) {
    decomposition::Emitter emit(graph_, id_);
    wanted.a = rows.factor ? numbers_of_codes(emit, rows.type) : dequantized(emit, rows.type);
    if (rows.factor) wanted.alpha_constant *= static_cast<float>(*rows.factor);
    wanted.scale_a = {};
    if (dot_.a_k_first) wanted.a = turned(emit, wanted.a);
    if (flat_) wanted.a = emit.reshape(wanted.a, *flat_);
    wanted.a_k_first = false;
  }

  ValueId numbers_of_codes(decomposition::Emitter& emit, DType type) const {
    const ValueId code = emit.cast(dot_.a, type);
    if (dot_.scale_a.zero_point == kNoValue) return code;
    const ValueId zero = emit.cast(emit.reshape(dot_.scale_a.zero_point, {}), type);
    return emit.binary("Sub", code, zero);
  }

  ValueId dequantized(decomposition::Emitter& emit, DType type) const {
    const ir::BlockScale& scale = dot_.scale_a;
    if (has_whole_blocks()) return dequantized_blocks(emit, type);
    const auto rank = static_cast<int64_t>(graph_.value(dot_.a).shape->size());
    const int64_t k_axis = dot_.a_k_first ? rank - 2 : rank - 1;
    const int64_t row_axis = dot_.a_k_first ? rank - 1 : rank - 2;
    Node node;
    node.op = "DequantizeLinear";
    node.inputs = {dot_.a, scale.scale};
    if (scale.zero_point != kNoValue) node.inputs.push_back(scale.zero_point);
    node.attributes["axis"] = scale.block > 0 ? k_axis : row_axis;
    if (scale.block > 0) node.attributes["block_size"] = scale.block;
    if (scale.scale_type != DType::kUndefined) {
      node.attributes["scale_type"] = std::string(name(scale.scale_type));
    }
    return emit.emit(std::move(node), type, graph_.value(dot_.a).shape);
  }

  bool has_whole_blocks() const {
    const int64_t block = dot_.scale_a.block;
    const Dim k = graph_.value(dot_.a).shape->back();
    return block > 0 && !dot_.a_k_first && floor_div(k, Dim(block)) * Dim(block) == k;
  }

  // [..., K / block, block], as what quantises blocks at Run computes them: both become one loop.
  ValueId dequantized_blocks(decomposition::Emitter& emit, DType type) const {
    const ir::BlockScale& scale = dot_.scale_a;
    const Shape whole = *graph_.value(dot_.a).shape;
    Shape blocks = whole;
    blocks.back() = floor_div(whole.back(), Dim(scale.block));
    Shape split = blocks, one_of_each = blocks;
    split.emplace_back(scale.block);
    one_of_each.emplace_back(1);
    const ValueId typed = scale.scale_type == DType::kUndefined
                              ? scale.scale
                              : emit.bitcast(scale.scale, scale.scale_type);
    const ValueId step = emit.cast(emit.reshape(typed, one_of_each), DType::kF32);
    const ValueId code = emit.cast(emit.reshape(dot_.a, split), DType::kF32);
    const ValueId number = emit.cast(emit.binary("Mul", code, step), type);
    return emit.reshape(number, whole);
  }

  // The last two axes the other way round.
  ValueId turned(decomposition::Emitter& emit, ValueId rows) const {
    const size_t rank = graph_.value(rows).shape->size();
    std::vector<int64_t> order = decomposition::axes_between(0, static_cast<int64_t>(rank));
    std::swap(order[rank - 1], order[rank - 2]);
    return emit.transpose(rows, std::move(order));
  }

  bool takes(const ScaledDot& dot) const {
    ir::MergedDots alone;
    alone.dots = {graph_.node(id_)};
    dot.write_to(alone.dots.front());
    Node question;
    alone.write_to(question, graph_);
    return static_cast<bool>(supports_(graph_, question));
  }

  Graph& graph_;
  const NodeId id_;
  const SupportsFn& supports_;
  ScaledDot dot_;              // with codes
  std::optional<Shape> flat_;  // of its rows, where the codes have more dimensions
  std::vector<int> sources_;   // of what dissolves
};

}  // namespace

void dequantize_rows(Graph& graph, const SupportsFn& supports) {
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    if (graph.node(id).is(ir::kScaledDot)) RowDequantizer(graph, id, supports).run();
  }
  graph.remove_dead_nodes();
}

}  // namespace tenon
