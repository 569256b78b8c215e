#include "kernels/llvm/attention/place_heads.h"

#include <algorithm>
#include <functional>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Access;
using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles of `width` over `size` elements need no bound where they cover them exactly.
ValueId elements_left(Builder& b, int64_t size, int64_t width, ValueId first) {
  return size % width == 0 ? kNone : b.sub(b.index(size), first);
}

void declare_strides(LaunchWriter& writer, const HeadStrides& strides) {
  for (const Dim& dim :
       {strides.batch, strides.head, strides.row, strides.column, strides.offset}) {
    writer.declare(dim);
  }
}

ValueId buffer_of(LaunchWriter& writer, const ir::Graph& graph, const std::string& name,
                  ir::ValueId id) {
  if (id == ir::kNoValue) return kNone;
  return writer.buffer(std::move(name), storage_type(graph.value(id).dtype),
                       BufferArgument::value(id));
}

class PlaceHeads {
 public:
  PlaceHeads(const ir::Graph& graph, const AttentionProblem& problem,
             const std::vector<NewHeads>& operands, const HeadTiles& tiles)
      : graph_(graph),
        problem_(problem),
        attention_(problem.attention),
        operands_(operands),
        tiles_(tiles),
        writer_("place_heads"),
        b_(writer_.builder) {
    declare();
  }

  Launch emit() {
    const ValueId per_token = b_.index(groups(operands_.size()));
    const ValueId token = b_.div(b_.task(), per_token);
    const ValueId group = b_.rem(b_.task(), per_token);
    batch_ = b_.div(token, dim(problem_.keys));
    row_ = b_.rem(token, dim(problem_.keys));
    kept_ = kept_rows(writer_, problem_, lengths_, batch_);
    if (attention_.has_rotary()) locate_angles();
    place_one_of(0, group);
    int64_t elements = 0;
    for (const NewHeads& operand : operands_) {
      elements += std::min(operand.heads, tiles_.heads_per_task) * operand.depth;
    }
    Launch launch = writer_.finish(problem_.batch * problem_.keys * groups(operands_.size()),
                                   elements / static_cast<int64_t>(operands_.size()) / 2 + 1);
    launch.threads = tiles_.threads;
    launch.checks = position_checks(problem_);
    return launch;
  }

 private:
  struct Buffers {
    ValueId from, to, norm;
  };

  void declare() {
    for (const NewHeads& operand : operands_) {
      const DType type = storage_type(graph_.value(operand.from).dtype);
      const std::string number = std::to_string(buffers_.size());
      Buffers buffers{};
      buffers.from = writer_.buffer("new" + number, type, BufferArgument::value(operand.from));
      buffers.to = writer_.buffer("placed" + number, type, operand.to);
      buffers.norm = buffer_of(writer_, graph_, "norm" + number, operand.norm);
      buffers_.push_back(buffers);
      declare_strides(writer_, operand.from_strides);
      declare_strides(writer_, operand.to_strides);
    }
    lengths_ = buffer_of(writer_, graph_, "lengths", attention_.kv_lengths);
    if (attention_.has_rotary()) {
      cos_ = buffer_of(writer_, graph_, "cos", attention_.cos);
      sin_ = buffer_of(writer_, graph_, "sin", attention_.sin);
      positions_ = buffer_of(writer_, graph_, "positions", attention_.positions);
      writer_.declare(problem_.angle_rows);
      writer_.declare(problem_.angle_batch);
      writer_.declare(problem_.position_batch);
    }
    for (const Dim& dim : {problem_.past, problem_.keys, problem_.all_keys}) writer_.declare(dim);
  }

  ValueId dim(const Dim& value) { return writer_.index(value); }
  std::vector<int> tile_shape(int columns) const { return {tiles_.heads, columns}; }

  // Tasks of a token that the first `count` operands take.
  int64_t groups(size_t count) const {
    int64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += ceil_div(operands_[i].heads, tiles_.heads_per_task);
    return sum;
  }

  // A row that the tables do not have is reported by the launch's checks; here it only must not be
  // read.
  void locate_angles() {
    const ValueId width = b_.index(problem_.angles);
    if (!problem_.has_angle_table) {
      angles_at_ = b_.add({b_.mul(batch_, dim(problem_.angle_batch)), b_.mul(row_, width)});
      return;
    }
    ValueId position = b_.add(kept_, row_);
    if (positions_ != kNone) {
      const ValueId at = b_.add(b_.mul(batch_, dim(problem_.position_batch)), row_);
      position = b_.index_from(b_.load({positions_, at, {}, {}}, {}));
    }
    const ValueId last = b_.sub({dim(problem_.angle_rows), b_.index(1)});
    angles_at_ = b_.mul(b_.max({b_.index(0), b_.min(position, last)}), width);
  }

  // The operand that has this task's group, of those from `index` on.
  void place_one_of(size_t index, ValueId group) {
    if (index + 1 == operands_.size()) return place(index, group);
    b_.branch(
        b_.less(group, b_.index(groups(index + 1))),
        [&] {
          place(index, group);
          return Nothing{};
        },
        [&] {
          place_one_of(index + 1, group);
          return Nothing{};
        });
  }

  void place(size_t index, ValueId group) {
    operand_ = &operands_[index];
    here_ = buffers_[index];
    const int64_t heads = operand_->heads;
    const ValueId first =
        b_.mul({b_.sub(group, b_.index(groups(index))), b_.index(tiles_.heads_per_task)});
    const ValueId end = b_.min({b_.index(heads), b_.add(first, b_.index(tiles_.heads_per_task))});
    b_.loop(first, end, b_.index(tiles_.heads), {}, [&](ValueId head, auto) {
      heads_left_ = elements_left(b_, heads, tiles_.heads, head);
      place_tile_of(head);
      return Nothing{};
    });
  }

  void place_tile_of(ValueId head) {
    const HeadStrides &from = operand_->from_strides, &to = operand_->to_strides;
    const ValueId to_row = operand_->behind_past ? b_.add(kept_, row_) : row_;
    from_at_ = place_in(from, head, row_);
    to_at_ = place_in(to, head, to_row);
    normal_ = here_.norm == kNone ? kNone : reciprocal_root();
    const int64_t turned = operand_->rotated ? 2 * problem_.angles : 0;
    if (turned > 0) rotate();
    for_columns(turned, operand_->depth, [&](ValueId column, ValueId left, int columns) {
      const bool as_it_is = here_.norm == kNone;
      const Tile codes = load(column, left, columns);
      store(column, left, 1, as_it_is ? codes : quantized(normed(codes, column, left, 1)));
    });
  }

  ValueId place_in(const HeadStrides& strides, ValueId head, ValueId row) {
    const ValueId token =
        b_.add({b_.mul(batch_, dim(strides.batch)), b_.mul(row, dim(strides.row))});
    return b_.add({b_.add(token, dim(strides.offset)), b_.mul(head, dim(strides.head))});
  }

  void for_columns(int64_t begin, int64_t end,
                   const std::function<void(ValueId column, ValueId left, int columns)>& body) {
    if (begin >= end) return;
    const int columns = tiles_.width_of(end - begin);
    b_.loop({b_.index(begin), b_.index(end), b_.index(columns)}, {}, [&](ValueId column, auto) {
      const bool covered = (end - begin) % columns == 0;
      body(column, covered ? kNone : b_.sub(b_.index(end), column), columns);
      return Nothing{};
    });
  }

  Tile load(ValueId column, ValueId left, int columns, int64_t step = 1) {
    const HeadStrides& from = operand_->from_strides;
    const ValueId stride = dim(from.column);
    return b_.load({here_.from,
                    b_.add(from_at_, b_.mul(column, stride)),
                    {dim(from.head), b_.mul(stride, b_.index(step))},
                    {heads_left_, left}},
                   tile_shape(columns));
  }

  void store(ValueId column, ValueId left, int64_t step, Tile codes) {
    const HeadStrides& to = operand_->to_strides;
    const ValueId stride = dim(to.column);
    b_.store({here_.to,
              b_.add(to_at_, b_.mul(column, stride)),
              {dim(to.head), b_.mul(stride, b_.index(step))},
              {heads_left_, left}},
             codes);
  }

  DType type() const { return graph_.value(operand_->from).dtype; }
  Tile dequantized(Tile codes) { return dequantize_tile(b_, codes, type()); }
  Tile quantized(Tile numbers) { return quantize_tile(b_, numbers, type()); }

  // 1 / sqrt(mean(x²) + epsilon) of each head.
  Tile reciprocal_root() {
    const int64_t depth = operand_->depth;
    const int columns = tiles_.width_of(depth);
    const Tile zero = b_.constant(DType::kF32, 0, tile_shape(columns));
    const Tile squares = b_.loop({b_.index(0), b_.index(depth), b_.index(columns)}, {zero},
                                 [&](ValueId column, auto sum) {
                                   const ValueId left = elements_left(b_, depth, columns, column);
                                   const Tile x = dequantized(load(column, left, columns));
                                   return std::vector<ValueId>{b_.fma(x, x, sum[0])};
                                 })[0];
    const std::vector<int> shape = {tiles_.heads};
    const Tile mean = b_.mul({b_.reduce(Fn::kAdd, squares, 1),
                              b_.constant(DType::kF32, 1.0 / static_cast<double>(depth), shape)});
    const Tile epsilon = b_.constant(DType::kF32, attention_.norm_epsilon, shape);
    return b_.unary(Fn::kRsqrt, b_.add(mean, epsilon));
  }

  // The numbers of a tile whose columns begin at `column` and stand `step` apart.
  Tile normed(Tile codes, ValueId column, ValueId left, int64_t step) {
    const Tile x = dequantized(codes);
    if (here_.norm == kNone) return x;
    const std::vector<int> shape = b_.type(x).shape;
    const Tile weight =
        dequantize_tile(b_, b_.load({here_.norm, column, {b_.index(step)}, {left}}, {shape[1]}),
                        graph_.value(operand_->norm).dtype);
    const Tile factor = b_.broadcast(b_.reshape(normal_, {tiles_.heads, 1}), shape);
    return b_.mul({b_.mul(x, factor), b_.broadcast(weight, shape)});
  }

  void rotate() {
    // Where the pair of angle i begins, its two elements being `apart`.
    const int64_t step = attention_.interleaved ? 2 : 1;
    const int64_t apart = attention_.interleaved ? 1 : problem_.angles;
    for_columns(0, problem_.angles, [&](ValueId angle, ValueId left, int columns) {
      const ValueId first = b_.mul(angle, b_.index(step));
      const ValueId second = b_.add(first, b_.index(apart));
      const Tile x = normed(load(first, left, columns, step), first, left, step);
      const Tile y = normed(load(second, left, columns, step), second, left, step);
      const Tile cos = angles(cos_, attention_.cos, angle, left, columns);
      const Tile sin = angles(sin_, attention_.sin, angle, left, columns);
      store(first, left, step, quantized(b_.sub({b_.mul(x, cos), b_.mul(y, sin)})));
      store(second, left, step, quantized(b_.add({b_.mul(x, sin), b_.mul(y, cos)})));
    });
  }

  Tile angles(ValueId buffer, ir::ValueId id, ValueId angle, ValueId left, int columns) {
    const Tile codes = b_.load({buffer, b_.add(angles_at_, angle), {}, {left}}, {columns});
    return b_.broadcast(dequantize_tile(b_, codes, graph_.value(id).dtype), tile_shape(columns));
  }

  const ir::Graph& graph_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const std::vector<NewHeads>& operands_;
  const HeadTiles& tiles_;
  LaunchWriter writer_;
  Builder& b_;
  std::vector<Buffers> buffers_;
  ValueId lengths_ = kNone, cos_ = kNone, sin_ = kNone, positions_ = kNone;
  ValueId batch_ = kNone, row_ = kNone, kept_ = kNone, angles_at_ = kNone;
  // The operand and the heads that code is written for.
  const NewHeads* operand_ = nullptr;
  Buffers here_{};
  ValueId heads_left_ = kNone, from_at_ = kNone, to_at_ = kNone;
  Tile normal_ = kNone;
};

// Rows of one head: row r begins at base + r * step.
struct RowsAt {
  ValueId buffer = kNone, base = kNone, step = kNone;
};

// Rows of caches, a block of one head's in each task: copied, or filled with zeros.
class RowCopy {
 public:
  RowCopy(LaunchWriter& writer, const AttentionProblem& problem, const HeadTiles& tiles, DType type,
          int64_t depth)
      : writer_(writer),
        b_(writer.builder),
        problem_(problem),
        tiles_(tiles),
        type_(type),
        depth_(depth),
        shape_{tiles.rows, tiles.width_of(depth)} {
    for (const Dim& dim : {problem.all_keys, tiles.rows_per_task, blocks()}) writer.declare(dim);
  }

  // What the task's number says.
  void begin() {
    const ValueId count = writer_.index(blocks());
    head = b_.div(b_.task(), count);
    batch = b_.div(head, b_.index(problem_.attention.kv_heads));
    first_ = b_.mul({b_.rem(b_.task(), count), writer_.index(tiles_.rows_per_task)});
    end_ = b_.min(
        {writer_.index(problem_.all_keys), b_.add(first_, writer_.index(tiles_.rows_per_task))});
  }

  // Of the rows [begin, end) those of this task.
  void copy(ValueId begin, ValueId end, const RowsAt& from, const RowsAt& to) {
    for_tiles(begin, end, [&](const auto& access) {
      const Tile codes = b_.load(access(from), shape_);
      b_.store(access(to), codes);
    });
  }
  void fill_with_zeros(ValueId begin, ValueId end, const RowsAt& to) {
    for_tiles(begin, end, [&](const auto& access) {
      const Tile zeros = is_floating(type_) ? b_.constant(type_, 0, shape_)
                                            : b_.integer_constant(type_, 0, shape_);
      b_.store(access(to), zeros);
    });
  }

  Launch finish() {
    const Dim heads = problem_.batch * problem_.attention.kv_heads;
    Launch launch = writer_.finish(heads * blocks(), tiles_.rows_per_task * (depth_ / 8 + 1));
    launch.threads = tiles_.threads;
    return launch;
  }

  ValueId head = kNone;  // over all batch rows
  ValueId batch = kNone;

 private:
  Dim blocks() const { return tenon::ceil_div(problem_.all_keys, tiles_.rows_per_task); }

  template <typename Write>
  void for_tiles(ValueId begin, ValueId end, const Write& write) {
    const ValueId first = b_.max(first_, begin), last = b_.min(end_, end);
    b_.loop(first, last, b_.index(shape_[0]), {}, [&](ValueId row, auto) {
      const ValueId rows_left = b_.sub(last, row);
      b_.loop({b_.index(0), b_.index(depth_), b_.index(shape_[1])}, {}, [&](ValueId column, auto) {
        const ValueId left = elements_left(b_, depth_, shape_[1], column);
        write([&](const RowsAt& rows) {
          const ValueId offset = b_.add(rows.base, b_.add(b_.mul(row, rows.step), column));
          return Access{rows.buffer, offset, {rows.step, b_.index(1)}, {rows_left, left}};
        });
        return Nothing{};
      });
      return Nothing{};
    });
  }

  LaunchWriter& writer_;
  Builder& b_;
  const AttentionProblem& problem_;
  const HeadTiles& tiles_;
  const DType type_;
  const int64_t depth_;
  const std::vector<int> shape_;
  ValueId first_ = kNone, end_ = kNone;
};

}  // namespace

ValueId kept_rows(LaunchWriter& writer, const AttentionProblem& problem, ValueId lengths,
                  ValueId batch) {
  Builder& b = writer.builder;
  const ValueId fresh = writer.index(problem.keys);
  const auto before_fresh = [&](ValueId end) { return b.max({b.index(0), b.sub(end, fresh)}); };
  ValueId kept = writer.index(problem.past);
  if (lengths != kNone) {
    const ValueId length = b.index_from(b.load({lengths, batch, {}, {}}, {}));
    kept = b.min(kept, before_fresh(length));
  }
  // A length beyond the cache must not write past its end.
  return b.min(kept, before_fresh(writer.index(problem.all_keys)));
}

int HeadTiles::width_of(int64_t elements) const {
  return static_cast<int>(std::min<int64_t>(columns, ceil_div(elements, 16) * 16));
}

HeadTiles HeadTiles::for_host(const AttentionProblem& problem) {
  const int64_t heads = std::max(problem.attention.q_heads, problem.attention.kv_heads);
  return {.heads = 1,
          .heads_per_task = heads,
          .rows = 1,
          .rows_per_task = max(problem.all_keys, Dim(1)),
          .columns = 16,
          .threads = 1};
}

HeadTiles HeadTiles::for_gpu() {
  return {.heads = 8,
          .heads_per_task = 8,
          .rows = 32,
          .rows_per_task = Dim(32),
          .columns = 128,
          .threads = 128};
}

std::vector<IndexCheck> position_checks(const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (!attention.has_rotary() || !problem.has_angle_table) return {};
  if (attention.positions != ir::kNoValue) {
    return {{.value = attention.positions, .bound = problem.angle_rows, .from_end = false}};
  }
  return length_checks(problem);
}

Launch place_heads_launch(const ir::Graph& graph, const AttentionProblem& problem,
                          const std::vector<NewHeads>& operands, const HeadTiles& tiles) {
  return PlaceHeads(graph, problem, operands, tiles).emit();
}

Launch copy_past_launch(const ir::Graph& graph, const AttentionProblem& problem,
                        const PastRows& cache, const HeadTiles& tiles) {
  LaunchWriter writer("copy_past");
  Builder& b = writer.builder;
  const DType type = storage_type(graph.value(cache.past).dtype);
  RowsAt past{writer.buffer("past", type, BufferArgument::value(cache.past))};
  RowsAt present{writer.buffer("present", type, cache.to)};
  const ValueId lengths = buffer_of(writer, graph, "lengths", problem.attention.kv_lengths);
  for (const Dim& dim : {problem.past, problem.keys}) writer.declare(dim);
  RowCopy rows(writer, problem, tiles, type, cache.depth);
  rows.begin();
  past.step = present.step = b.index(cache.depth);
  past.base = b.mul(rows.head, b.mul(writer.index(problem.past), past.step));
  present.base = b.mul(rows.head, b.mul(writer.index(problem.all_keys), present.step));
  const ValueId kept = kept_rows(writer, problem, lengths, rows.batch);
  rows.copy(b.index(0), kept, past, present);
  const ValueId end = b.add(kept, writer.index(problem.keys));
  rows.fill_with_zeros(end, writer.index(problem.all_keys), present);
  Launch launch = rows.finish();
  if (cache.present != ir::kNoValue) launch.elidable_copy = ElidableCopy{cache.past, cache.present};
  return launch;
}

Launch zero_behind_lengths_launch(const ir::Graph& graph, const AttentionProblem& problem,
                                  const CountedRows& counted, const HeadTiles& tiles) {
  LaunchWriter writer("zero_behind_lengths");
  Builder& b = writer.builder;
  const DType type = storage_type(counted.dtype);
  RowsAt from{writer.buffer("from", type, counted.from)};
  RowsAt to{writer.buffer("to", type, counted.to)};
  const ValueId lengths = buffer_of(writer, graph, "lengths", problem.attention.kv_lengths);
  declare_strides(writer, counted.from_strides);
  RowCopy rows(writer, problem, tiles, type, counted.depth);
  rows.begin();
  const ValueId all_keys = writer.index(problem.all_keys);
  const ValueId head = b.rem(rows.head, b.index(problem.attention.kv_heads));
  from.base = b.add({b.mul(rows.batch, writer.index(counted.from_strides.batch)),
                     b.mul(head, writer.index(counted.from_strides.head))});
  from.step = writer.index(counted.from_strides.row);
  to.step = b.index(counted.depth);
  to.base = b.mul(rows.head, b.mul(all_keys, to.step));
  const ValueId given = b.index_from(b.load({lengths, rows.batch, {}, {}}, {}));
  const ValueId length = b.max({b.index(0), b.min(given, all_keys)});
  rows.copy(b.index(0), length, from, to);
  rows.fill_with_zeros(length, all_keys, to);
  return rows.finish();
}

}  // namespace tenon::kernels
