#include "kernels/llvm/attention/flash_decode_token.h"

#include <algorithm>

#include "kernels/llvm/attention/flash_decode_config.h"

namespace tenon::kernels {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

namespace {

bool is_input(const ir::Graph& graph, ir::ValueId id) {
  return std::ranges::count(graph.inputs(), id) > 0;
}

HeadStrides cache_strides(const AttentionProblem& problem, const Dim& rows, int64_t depth) {
  const Dim head = rows * depth;
  return {problem.attention.kv_heads * head, head, Dim(depth), 1};
}

}  // namespace

Support can_add_token(const ir::Graph& graph, const ir::Node& node,
                      const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (!problem.has_past()) return Support::no("there is no KV cache");
  if (node.output(1) == ir::kNoValue || node.output(2) == ir::kNoValue) {
    return Support::no("present_key and present_value are not outputs");
  }
  if (!is_input(graph, attention.past_k) || !is_input(graph, attention.past_v)) {
    return Support::no("past_key or past_value is computed in the partition");
  }
  if (attention.has_codes()) {
    if (const Support codes = reads_codes(problem); !codes) return codes;
  }
  if (!(problem.keys == problem.queries))
    return Support::no("key and query sequence lengths differ");
  return Support::yes();
}

AttentionOperands operands_of_past(const AttentionProblem& problem) {
  const auto past = [&](ir::ValueId id, int64_t depth) {
    if (problem.attention.has_codes()) {
      return code_words(problem, BufferArgument::value(id), problem.past, depth);
    }
    return HeadRows{BufferArgument::value(id), cache_strides(problem, problem.past, depth)};
  };
  return {{BufferArgument::value(problem.attention.q), problem.q},
          past(problem.attention.past_k, problem.depth),
          past(problem.attention.past_v, problem.value_depth)};
}

NewToken::NewToken(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
                   const AttentionProblem& problem, ValueId q)
    : writer_(writer),
      b_(writer.builder),
      graph_(graph),
      problem_(problem),
      attention_(problem.attention) {
  const auto buffer = [&](const char* name, ir::ValueId id) {
    if (id == ir::kNoValue) return kNone;
    return writer.buffer(name, storage_type(graph.value(id).dtype), BufferArgument::value(id));
  };
  q_ = {q,
        attention_.q,
        problem.q,
        problem.depth,
        buffer("q_norm", attention_.q_norm),
        attention_.q_norm};
  k_ = {buffer("new_k", attention_.k),       attention_.k,     problem.k, problem.depth,
        buffer("k_norm", attention_.k_norm), attention_.k_norm};
  v_ = {buffer("new_v", attention_.v), attention_.v, problem.v, problem.value_depth};
  present_k_ = buffer("present_k", node.output(1));
  present_v_ = buffer("present_v", node.output(2));
  cos_ = buffer("cos", attention_.cos);
  sin_ = buffer("sin", attention_.sin);
  positions_ = buffer("positions", attention_.positions);
  for (const HeadStrides* strides : {&problem.q, &problem.k, &problem.v}) {
    for (const Dim& dim : {strides->batch, strides->head, strides->row, strides->column}) {
      writer.declare(dim);
    }
  }
  for (const Dim& dim : {problem.past, problem.all_keys, problem.angle_rows, problem.angle_batch,
                         problem.position_batch}) {
    writer.declare(dim);
  }
}

// A row that the tables do not have is reported by the launch's checks; here it only must not be
// read.
void NewToken::locate(const AttentionTask& task, ValueId kept) {
  task_ = task;
  kept_ = kept;
  if (!attention_.has_rotary()) return;
  if (!problem_.has_angle_table) {
    angles_at_ = b_.mul(task.batch, dim(problem_.angle_batch));
    return;
  }
  ValueId position = kept;
  if (positions_ != kNone) {
    const ValueId at = b_.mul(task.batch, dim(problem_.position_batch));
    position = b_.index_from(b_.load({positions_, at, {}, {}}, {}));
  }
  const ValueId last = b_.sub({dim(problem_.angle_rows), b_.index(1)});
  const ValueId row = b_.max({b_.index(0), b_.min(position, last)});
  angles_at_ = b_.mul(row, b_.index(problem_.angles));
}

ValueId NewToken::place(const HeadStrides& strides, ValueId head) {
  return b_.add({b_.mul(task_.batch, dim(strides.batch)), b_.mul(head, dim(strides.head))});
}

Tile NewToken::angles(ValueId buffer, ir::ValueId id, Tile angle, Tile turned, double fill) {
  return dequantize_tile(b_, b_.gather(buffer, angles_at_, angle, turned, fill),
                         graph_.value(id).dtype);
}

// 1 / sqrt(mean(x²) + epsilon) of each head.
Tile NewToken::reciprocal_roots(const Heads& from, ValueId head, int heads) {
  int columns = 1;
  while (columns < from.depth) columns *= 2;
  const Tile codes = b_.load({from.buffer,
                              place(from.strides, head),
                              {dim(from.strides.head), dim(from.strides.column)},
                              {kNone, b_.index(from.depth)}},
                             {heads, columns});
  const Tile x = dequantize_tile(b_, codes, graph_.value(from.id).dtype);
  const auto f32 = [&](double value) { return b_.constant(DType::kF32, value, {heads}); };
  const Tile mean =
      b_.mul({b_.reduce(Fn::kAdd, b_.mul(x, x), 1), f32(1.0 / static_cast<double>(from.depth))});
  return b_.unary(Fn::kRsqrt, b_.add(mean, f32(attention_.norm_epsilon)));
}

// Each element takes the other one of its pair by itself.
Tile NewToken::rotated(const Heads& from, ValueId head, int heads, int64_t first, int columns) {
  const std::vector<int> shape = {heads, columns};
  const auto number = [&](int64_t value) { return b_.integer_constant(DType::kI32, value, shape); };
  const auto splat = [&](const Dim& value) {
    return b_.splat(b_.from_index(dim(value), DType::kI32), shape);
  };
  const DType type = graph_.value(from.id).dtype;
  const ValueId begin = place(from.strides, head);
  const Tile column = b_.add({b_.iota(DType::kI32, shape, 1), number(first)});
  const Tile row = b_.mul({b_.iota(DType::kI32, shape, 0), splat(from.strides.head)});
  const auto load = [&](Tile wanted, Tile mask) {
    const Tile at = b_.add(row, b_.mul(wanted, splat(from.strides.column)));
    return dequantize_tile(b_, b_.gather(from.buffer, begin, at, mask), type);
  };
  const Tile roots = from.norm == kNone ? kNone : reciprocal_roots(from, head, heads);
  const auto load_normed = [&](Tile wanted, Tile mask) {
    const Tile numbers = load(wanted, mask);
    if (roots == kNone) return numbers;
    const Tile weight = dequantize_tile(b_, b_.gather(from.norm, b_.index(0), wanted, mask),
                                        graph_.value(from.norm_id).dtype);
    return b_.mul(b_.mul(numbers, b_.broadcast(b_.reshape(roots, {heads, 1}), shape)), weight);
  };
  const Tile x = load_normed(column, b_.compare(Fn::kLess, column, number(from.depth)));
  if (!attention_.has_rotary()) return quantize_tile(b_, x, type);

  const int64_t width = problem_.angles;
  const Tile turned = b_.compare(Fn::kLess, column, number(2 * width));
  Tile is_first = kNone, other = kNone, angle = kNone;
  if (attention_.interleaved) {
    const Tile odd = b_.binary(Fn::kAnd, column, number(1));
    is_first = b_.compare(Fn::kEqual, odd, number(0));
    other = b_.binary(Fn::kXor, column, number(1));
    angle = b_.binary(Fn::kShiftRight, column, number(1));
  } else {
    is_first = b_.compare(Fn::kLess, column, number(width));
    other = b_.select({is_first, b_.add(column, number(width)), b_.sub(column, number(width))});
    angle = b_.select(is_first, column, b_.sub(column, number(width)));
  }
  const Tile y = load_normed(other, turned);
  const Tile cos = angles(cos_, attention_.cos, angle, turned, 1);
  const Tile sin = angles(sin_, attention_.sin, angle, turned, 0);
  const Tile own = b_.mul(x, cos), others = b_.mul(y, sin);
  return quantize_tile(b_, b_.select({is_first, b_.sub(own, others), b_.add(others, own)}), type);
}

Tile NewToken::queries(int heads, int64_t first, int columns) {
  return rotated(q_, task_.head, heads, first, columns);
}

Tile NewToken::key(int64_t first, int columns) {
  return rotated(k_, task_.kv_head, 1, first, columns);
}

Tile NewToken::value(int rows, int columns) {
  return b_.load({v_.buffer,
                  place(v_.strides, task_.kv_head),
                  {b_.index(0), dim(v_.strides.column)},
                  {kNone, b_.index(v_.depth)}},
                 {rows, columns});
}

Tile NewToken::value_at(Tile column) {
  const std::vector<int> shape = b_.type(column).shape;
  const auto splat = [&](ValueId index) {
    return b_.splat(b_.from_index(index, DType::kI32), shape);
  };
  const Tile at = b_.mul(column, splat(dim(v_.strides.column)));
  const Tile inside = b_.compare(Fn::kLess, column, splat(b_.index(v_.depth)));
  return b_.gather(v_.buffer, place(v_.strides, task_.kv_head), at, inside);
}

void NewToken::store(ValueId present, int64_t depth, int64_t first, Tile elements) {
  const int64_t width = problem_.cache_width(depth);
  const ValueId head = b_.add(b_.mul(task_.batch, b_.index(attention_.kv_heads)), task_.kv_head);
  const ValueId row = b_.add(b_.mul(head, dim(problem_.all_keys)), kept_);
  b_.store({present,
            b_.add({b_.mul(row, b_.index(width)), b_.index(first)}),
            {},
            {kNone, b_.index(width - first)}},
           elements);
}

void NewToken::store_key(int64_t first, Tile key) { store(present_k_, k_.depth, first, key); }
void NewToken::store_value(int64_t first, Tile value) { store(present_v_, v_.depth, first, value); }

}  // namespace tenon::kernels
