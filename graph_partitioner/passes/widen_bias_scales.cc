#include "graph_partitioner/passes/widen_bias_scales.h"

#include <array>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon {
namespace {

using ir::kNoValue;
using ir::ValueId;

// The node behind `value` where it is an `op`.
const ir::Node* maker(const ir::Graph& graph, ValueId value, std::string_view op) {
  const ir::Node* node = graph.producer(value);
  return node && node->is(op) ? node : nullptr;
}

struct QuantizedBias {
  ValueId bias = kNoValue, x_scale = kNoValue, w_scale = kNoValue;
  std::vector<int> sources;
};

std::optional<QuantizedBias> quantized_bias(Rewrite& r) {
  if (r.has_input(2) || bit_width(r.dtype(r.output())) != 16) return std::nullopt;
  const ir::Graph& graph = r.graph();
  const ir::Node* cast = maker(graph, r.input(0), "Cast");
  const ir::Node* round = cast ? maker(graph, cast->input(0), "Round") : nullptr;
  const ir::Node* quotient = round ? maker(graph, round->input(0), "Div") : nullptr;
  const ir::Node* scale = maker(graph, r.input(1), "Mul");
  if (!quotient || !scale || quotient->input(1) != r.input(1)) return std::nullopt;
  if (r.dtype(r.input(0)) != DType::kI32) return std::nullopt;
  QuantizedBias found{quotient->input(0), scale->input(0), scale->input(1), {}};
  for (const ir::Node* node : {scale, quotient, round, cast}) {
    found.sources = ir::merge_sources(found.sources, node->sources);
  }
  return found;
}

bool widen(Rewrite& r) {
  const auto found = quantized_bias(r);
  if (!found) return false;
  r.absorb(found->sources);
  const ValueId x_scale = r.emit.widen(found->x_scale), w_scale = r.emit.widen(found->w_scale);
  const ValueId scale = r.emit.binary("Mul", x_scale, w_scale);
  const ValueId quotient = r.emit.binary("Div", r.emit.widen(found->bias), scale);
  const ValueId codes = r.emit.cast(r.emit.unary("Round", quotient), DType::kI32);
  r.become("DequantizeLinear", {codes, scale}, r.node().attributes);
  return true;
}

constexpr NamedRewrite kRules[] = {{"DequantizeLinear", widen}};

}  // namespace

void widen_bias_scales(ir::Graph& graph) {
  apply_rules(graph, std::to_array<std::span<const NamedRewrite>>({kRules}));
}

}  // namespace tenon
