#include "kernels/llvm/attention/task.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
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
        b.add(b.add(position, queries), b.index(causal ? 0 : attention.right_window));
    task.last_key = b.max(b.index(0), b.min(task.last_key, end));
  }
  if (attention.left_window >= 0) {
    const ValueId begin = b.sub(position, b.index(attention.left_window));
    task.first_key = b.max(b.index(0), b.min(begin, task.last_key));
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
                          int64_t query_block, ValueId lengths) {
  Builder& b = writer.builder;
  const ir::Attention& attention = problem.attention;
  const ValueId blocks = writer.index(ceil_div(problem.queries, query_block));
  const ValueId heads = b.index(attention.q_heads);
  const ValueId rest = b.div(number, blocks);
  AttentionTask task{};
  task.first_query = b.mul(b.rem(number, blocks), b.index(query_block));
  task.head = b.rem(rest, heads);
  task.batch = b.div(rest, heads);
  task.kv_head = b.div(task.head, b.index(problem.group()));
  task.queries_left = b.sub(writer.index(problem.queries), task.first_query);

  task.length = writer.index(problem.all_keys);
  ValueId past = writer.index(problem.past);
  if (lengths != codegen::kNone) {
    const ValueId given = b.index_from(b.load({lengths, task.batch, {}, {}}, {}));
    task.length = b.max(b.index(0), b.min(given, task.length));
    if (problem.has_past()) {
      past = b.max(b.index(0), b.sub(task.length, writer.index(problem.keys)));
    }
  }
  task.origin = attention.causal ? b.sub(task.length, writer.index(problem.queries)) : past;
  limit_keys(b, attention, query_block, task);
  return task;
}

ValueId rows_of_nothing(LaunchWriter& writer, const AttentionProblem& problem, ValueId total) {
  Builder& b = writer.builder;
  const std::vector<int> shape = b.type(total).shape;
  if (!problem.attention.nan_without_keys) {
    return b.compare(codegen::Fn::kEqual, total, b.constant(DType::kF32, 0, shape));
  }
  return b.splat(b.equal(writer.index(problem.all_keys), b.index(0)), shape);
}

}  // namespace tenon::kernels
