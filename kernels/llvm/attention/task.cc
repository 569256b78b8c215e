#include "kernels/llvm/attention/task.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

void limit_keys(Builder& b, const ir::Attention& attention, int64_t query_block,
                AttentionTask& task) {
  const bool causal = attention.causal || attention.causal_top_left;
  const ValueId position = b.add(task.origin, task.first_query);
  task.first_key = b.index(0);
  task.last_key = task.length;
  if (causal || attention.right_window >= 0) {
    const ValueId queries = b.min(b.index(query_block), task.queries_left);
    const ValueId end =
        b.add({b.add(position, queries), b.index(causal ? 0 : attention.right_window)});
    task.last_key = b.max({b.index(0), b.min(task.last_key, end)});
  }
  if (attention.left_window >= 0) {
    const ValueId begin = b.sub(position, b.index(attention.left_window));
    task.first_key = b.max({b.index(0), b.min(begin, task.last_key)});
  }
}

}  // namespace

void declare_task(LaunchWriter& writer, const AttentionProblem& problem, int64_t query_block) {
  for (const Dim& dim : {problem.queries, problem.keys, problem.past, problem.all_keys,
                         ceil_div(problem.queries, query_block)}) {
    writer.declare(dim);
  }
}

AttentionTask locate_task(LaunchWriter& writer, const AttentionProblem& problem, ValueId number,
                          int64_t query_block, ValueId lengths, ValueId length) {
  Builder& b = writer.builder;
  const ir::Attention& attention = problem.attention;
  const ValueId blocks = writer.index(ceil_div(problem.queries, query_block));
  const ValueId heads = b.index(attention.q_heads);
  const ValueId rest = b.div(number, blocks);
  AttentionTask task{};
  task.first_query = b.mul({b.rem(number, blocks), b.index(query_block)});
  task.head = b.rem(rest, heads);
  task.batch = b.div(rest, heads);
  task.kv_head = b.div(task.head, b.index(problem.group()));
  task.queries_left = b.sub(writer.index(problem.queries), task.first_query);

  task.length = writer.index(problem.all_keys);
  ValueId past = writer.index(problem.past);
  if (lengths != codegen::kNone) {
    if (length == codegen::kNone) {
      const ValueId given = b.index_from(b.load({lengths, task.batch, {}, {}}, {}));
      length = b.max({b.index(0), b.min(given, task.length)});
    }
    task.length = length;
    if (problem.has_past()) {
      past = b.max({b.index(0), b.sub(task.length, writer.index(problem.keys))});
    }
  }
  task.origin = attention.causal ? b.sub(task.length, writer.index(problem.queries)) : past;
  limit_keys(b, attention, query_block, task);
  return task;
}

ValueId apply_mask(Builder& b, const AttentionProblem& problem, ValueId scores, ValueId codes,
                   double per_one) {
  const std::vector<int> shape = b.type(scores).shape;
  const auto number = [&](double value) { return b.constant(DType::kF32, value, shape); };
  // Half of what a float holds leaves room for the score.
  const double lowest = -std::numeric_limits<float>::max() / 2 / std::max(1.0, per_one);
  const double given = problem.attention.mask_fill;
  const double fill = std::isinf(given) ? given : std::clamp(given, lowest, -lowest) * per_one;
  if (problem.mask_type == DType::kBool) return b.select(codes, scores, number(fill));
  const ValueId bias = dequantize_tile(b, codes, problem.mask_type);
  ValueId finite = bias;
  if (problem.mask_type != DType::kF16) {
    finite = b.select({b.compare(Fn::kLess, bias, number(lowest)), number(lowest), bias});
  }
  const ValueId hidden = number(-std::numeric_limits<float>::infinity());
  // A hidden key may hold anything, NaN too.
  const ValueId sum = b.select(
      {b.compare(Fn::kEqual, bias, hidden), hidden, b.fma(finite, number(per_one), scores)});
  if (std::isinf(given)) return sum;
  return b.select({b.compare(Fn::kEqual, bias, bias), sum, number(fill)});
}

ValueId exp_at_most_one(Builder& b, ValueId x) {
  const std::vector<int> shape = b.type(x).shape;
  const auto number = [&](double value) { return b.constant(DType::kF32, value, shape); };
  constexpr double kLog2E = 1.44269504088896341;
  // ln 2 in two parts; the first has few enough bits that its product with an exponent is exact.
  constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.42860682030941723e-06;
  // Adding this leaves a whole number and a float's bias in the low bits.
  constexpr double kBiased = 12582912.0 + 127;
  x = b.max(x, number(-88));  // 2^-127 has no exponent: its bits are those of 0
  const ValueId shifted = b.fma({x, number(kLog2E), number(kBiased)});
  const ValueId n = b.sub(shifted, number(kBiased));
  const ValueId r = b.fma({n, number(-kLn2Low), b.fma(n, number(-kLn2High), x)});
  // (e^r - 1 - r) / r^2, a minimax fit
  ValueId p = number(0.0013950835);
  for (const double c : {0.00836908817, 0.0416662022, 0.166665167, 0.5, 1.0, 1.0}) {
    p = b.fma(p, r, number(c));
  }
  const ValueId exponent = b.binary(Fn::kShiftLeft, {b.bitcast(shifted, DType::kI32),
                                                     b.integer_constant(DType::kI32, 23, shape)});
  return b.mul(p, b.bitcast(exponent, DType::kF32));
}

ValueId rows_of_nothing(LaunchWriter& writer, const AttentionProblem& problem, ValueId total) {
  Builder& b = writer.builder;
  const std::vector<int> shape = b.type(total).shape;
  if (!problem.attention.nan_without_keys) {
    return b.compare(codegen::Fn::kEqual, total, b.constant(DType::kF32, 0, shape));
  }
  return b.splat(b.equal({writer.index(problem.all_keys), b.index(0)}), shape);
}

}  // namespace tenon::kernels
