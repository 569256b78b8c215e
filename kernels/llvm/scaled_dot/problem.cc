#include "kernels/llvm/scaled_dot/problem.h"

#include <algorithm>

#include <fmt/format.h>

namespace tenon::kernels {
namespace {

// Everything before the last two dims.
Shape leading(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

bool all_ones(const Shape& shape) {
  for (const Dim& dim : shape) {
    if (!dim.is(1)) return false;
  }
  return true;
}

Support check_scale_b(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const ir::BlockScale& scale = problem.dot.scale_b;
  if (scale.scale == ir::kNoValue || !scale.per_channel) return Support::yes();
  if (!problem.k.is_constant() || !problem.n.is_constant()) {
    return Support::no("block scales need static N and K");
  }
  const ir::Value& value = graph.value(scale.scale);
  if (!value.shape || !is_static(*value.shape))
    return Support::no("the scales' shape is not static");
  const int64_t blocks = ceil_div(problem.k, problem.block()).value();
  const int64_t wanted = blocks * problem.n.value();
  if (element_count(*value.shape).value() != wanted) {
    return Support::no(fmt::format("scales {} do not match K={} N={} block_size {}",
                                   text(*value.shape), problem.k.text(), problem.n.text(),
                                   problem.block()));
  }
  return Support::yes();
}

}  // namespace

bool ScaledDotProblem::is_quantized_b() const {
  return has_scale_b() || is_small_float(b_type) || is_integer(b_type);
}

int64_t ScaledDotProblem::block() const {
  if (dot.scale_b.block > 0) return dot.scale_b.block;
  return k.is_constant() ? std::max<int64_t>(k.value(), 1) : 0;
}

std::string ScaledDotProblem::text() const {
  std::string weight(name(b_type));
  if (has_scale_b())
    weight += dot.scale_b.block > 0 ? fmt::format(" block {}", dot.scale_b.block) : " scaled";
  return fmt::format("{} x {} [{},{}]{}, rows {}", name(a_type), weight, k.text(), n.text(),
                     b_constant ? "" : " at run time", rows.text());
}

DescribedScaledDot describe_scaled_dot(const ir::Graph& graph, const ir::Node& node) {
  DescribedScaledDot result;
  ScaledDotProblem& problem = result.problem;
  problem.dot = ir::ScaledDot::from(node);
  const ir::ScaledDot& dot = problem.dot;
  const ir::Value& a = graph.value(dot.a);
  const ir::Value& b = graph.value(dot.b);
  const auto refuse = [&](std::string why) {
    result.support = Support::no(std::move(why));
    return result;
  };
  if (!a.shape || a.shape->size() < 2) return refuse("A has fewer than two dimensions");
  const Shape b_shape = dot.b_dims.empty() ? b.shape.value_or(Shape{}) : make_shape(dot.b_dims);
  if (b_shape.size() < 2) return refuse("B has fewer than two dimensions");

  const size_t ar = a.shape->size(), br = b_shape.size();
  problem.a_type = a.dtype;
  problem.b_type = dot.b_type != DType::kUndefined ? dot.b_type : b.dtype;
  problem.m = (*a.shape)[dot.a_k_first ? ar - 1 : ar - 2];
  problem.k = (*a.shape)[dot.a_k_first ? ar - 2 : ar - 1];
  problem.n = b_shape[dot.b_k_last ? br - 2 : br - 1];
  const Dim b_k = b_shape[dot.b_k_last ? br - 1 : br - 2];
  // The side with a fixed number speaks for both: the other is checked when shapes are bound.
  if (b_k.is_constant()) {
    if (problem.k.is_constant() && !(problem.k == b_k)) {
      return refuse(fmt::format("K differs: A has {}, B has {}", problem.k.text(), b_k.text()));
    }
    problem.k = b_k;
  }
  problem.a_batch = leading(*a.shape);
  problem.b_batch = leading(b_shape);
  const auto batch = broadcast_shapes(problem.a_batch, problem.b_batch);
  if (!batch) return refuse("the batch dimensions do not broadcast");
  problem.batch = *batch;
  problem.rows = element_count(problem.batch) * problem.m;
  problem.b_constant = b.is_constant() && all_ones(problem.b_batch) && problem.n.is_constant() &&
                       problem.k.is_constant();
  problem.y_type = dot.result != DType::kUndefined ? dot.result
                   : node.body                     ? node.body->value(node.body->inputs()[0]).dtype
                                                   : graph.value(node.outputs[0]).dtype;
  result.support = check_scale_b(graph, problem);
  return result;
}

}  // namespace tenon::kernels
