#include "kernels/llvm/attention/gpu_flash.h"

#include <algorithm>
#include <limits>

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/split_parts.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Terms = std::vector<Tile>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Width of equal tiles that cover `size`: a multiple of 16, hardly wider than `most`.
int even_share(int64_t size, int most) {
  const int64_t tiles = std::max<int64_t>(1, (size + most / 2) / most);
  return static_cast<int>(round_up((size + tiles - 1) / tiles, 16));
}

// The largest tiles of a CTA.
struct TileSizes {
  int few_queries, many_queries, keys;
  int depth;       // of q and k that are multiplied at once
  int value_step;  // columns of v in one accumulator
  int panel;       // columns of v, and of the result, that a CTA computes
  int crowded;     // panels wider than this fill the registers of 128 threads

  // Operands of the larger product, in shared memory at the same time.
  int64_t shared_bytes(int terms) const {
    const int64_t scores = int64_t{depth} * (many_queries + keys);
    const int64_t outputs = int64_t{keys} * (many_queries + value_step);
    return std::max(scores, outputs) * terms * 2;
  }
};

constexpr TileSizes kWholeTiles = {16, 64, 64, 64, 64, 256, 64};
constexpr TileSizes kSplitTiles = {16, 64, 64, 32, 32, 128, 0};  // operands have several terms
constexpr TileSizes kSmallTiles = {4, 8, 16, 16, 16, 32, 16};    // where shared memory is scarce

TileSizes tile_sizes(bool exact, const codegen::GpuTarget& gpu) {
  const TileSizes& sizes = exact ? kSplitTiles : kWholeTiles;
  return 2 * sizes.shared_bytes(exact ? 4 : 1) <= gpu.shared_bytes ? sizes : kSmallTiles;
}

// Tiles of one launch.
struct FlashTiles {
  int queries, keys, depth, value_step;
  int64_t panel;
  int threads;
  bool exact;  // operands are split into bf16 terms
  bool ahead;  // k and v fit into registers before they are needed

  FlashTiles(const AttentionProblem& problem, const TileSizes& sizes, bool many, bool split)
      : queries(many ? sizes.many_queries : sizes.few_queries), keys(sizes.keys), exact(split) {
    depth = even_share(problem.depth, sizes.depth);
    panel = even_share(problem.value_depth, sizes.panel);
    value_step = even_share(panel, sizes.value_step);
    const bool wide = panel > 128;  // accumulators of many queries would fill 256 threads too
    threads = wide || (many && panel > sizes.crowded) ? 256 : 128;
    if (many && threads == 256 && !wide) queries *= 2;
    ahead = !exact && problem.depth <= depth && keys * (depth + panel) <= 64 * threads &&
            !problem.attention.rounds_probabilities();
  }
};

class GpuFlash {
 public:
  GpuFlash(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
           const AttentionOperands& operands, const FlashTiles& tiles)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        tiles_(tiles),
        query_strides_(operands.q.strides),
        key_strides_(operands.keys.strides),
        value_strides_(operands.values.strides),
        writer_("attention"),
        b_(writer_.builder) {
    declare(operands);
  }

  Launch emit(const Dim& wanted) {
    const ValueId panels = b_.index(panel_count());
    panel_ = b_.mul({b_.rem(b_.task(), panels), b_.index(tiles_.panel)});
    task_ = locate_task(writer_, problem_, b_.div(b_.task(), panels), tiles_.queries, lengths_);
    if (one_depth_step()) queries_ = load_queries(b_.index(0));
    walk_keys();
    const Dim query_tiles = ceil_div(problem_.queries, tiles_.queries);
    Launch launch =
        writer_.finish(problem_.batch * attention_.q_heads * query_tiles * panel_count() * wanted,
                       problem_.all_keys * (problem_.depth + problem_.value_depth));
    launch.threads = tiles_.threads;
    return launch;
  }

 private:
  void declare(const AttentionOperands& operands) {
    const auto buffer = [&](const char* name, ir::ValueId id, BufferArgument argument) {
      return id == ir::kNoValue ? kNone : writer_.buffer(name, storage_type(dtype(id)), argument);
    };
    const auto value_buffer = [&](const char* name, ir::ValueId id) {
      return buffer(name, id, BufferArgument::value(id));
    };
    q_ = buffer("q", attention_.q, operands.q.buffer);
    k_ = buffer("k", attention_.k, operands.keys.buffer);
    v_ = buffer("v", attention_.v, operands.values.buffer);
    mask_ = value_buffer("mask", attention_.mask);
    lengths_ = value_buffer("lengths", attention_.kv_lengths);
    sinks_ = value_buffer("sinks", attention_.sinks);
    y_ = value_buffer("y", node_.outputs[0]);
    for (const HeadStrides* strides :
         {&query_strides_, &key_strides_, &value_strides_, &problem_.y}) {
      for (const Dim& dim : {strides->batch, strides->head, strides->row, strides->column}) {
        writer_.declare(dim);
      }
    }
    for (const Dim& dim : {problem_.mask_batch, problem_.mask_head, problem_.mask_query,
                           problem_.mask_key, mask_keys()}) {
      writer_.declare(dim);
    }
    declare_task(writer_, problem_, tiles_.queries);
  }

  DType dtype(ir::ValueId id) const { return graph_.value(id).dtype; }
  ValueId dim(const Dim& value) { return writer_.index(value); }
  Tile f32(double value, std::vector<int> shape) { return b_.constant(DType::kF32, value, shape); }
  Tile per_row(double value) { return f32(value, {tiles_.queries}); }
  int64_t panel_count() const { return (problem_.value_depth + tiles_.panel - 1) / tiles_.panel; }
  bool one_depth_step() const { return problem_.depth <= tiles_.depth; }
  // Keys that the mask speaks of; 1 where it repeats.
  Dim mask_keys() const {
    if (attention_.mask == ir::kNoValue) return 1;
    const Shape& shape = *graph_.value(attention_.mask).shape;
    return shape.empty() ? Dim(1) : shape.back();
  }

  // A number for each row as a tile of `columns` columns.
  Tile spread(Tile rows, int columns) {
    return b_.broadcast(b_.reshape(rows, {tiles_.queries, 1}), {tiles_.queries, columns});
  }
  Tile spread_columns(Tile columns) { return b_.broadcast(columns, {tiles_.queries, tiles_.keys}); }

  ValueId head_offset(const HeadStrides& strides, ValueId head) {
    return b_.add({b_.mul(task_.batch, dim(strides.batch)), b_.mul(head, dim(strides.head))});
  }
  ValueId place(const HeadStrides& strides, ValueId head, ValueId row, ValueId column) {
    return b_.add({head_offset(strides, head),
                   b_.add({b_.mul(row, dim(strides.row)), b_.mul(column, dim(strides.column))})});
  }

  Terms operand(Tile codes, DType type) {
    if (!tiles_.exact || type == DType::kBF16) return {codes};
    return split_bf16(b_, dequantize_tile(b_, codes, type), bf16_parts(type));
  }

  // Extents of columns from `first` on; none where tiles of `width` cover them exactly.
  ValueId columns_left(int64_t columns, int64_t width, ValueId first) {
    return columns % width == 0 ? kNone : b_.sub(b_.index(columns), first);
  }

  Terms load_queries(ValueId depth) {
    const Tile codes =
        b_.load({q_,
                 place(query_strides_, task_.head, task_.first_query, depth),
                 {dim(query_strides_.row), dim(query_strides_.column)},
                 {task_.queries_left, columns_left(problem_.depth, tiles_.depth, depth)}},
                {tiles_.queries, tiles_.depth});
    return operand(codes, dtype(attention_.q));
  }

  bool keys_are_columns() const { return key_strides_.row.is(1); }

  // Rows of k, or columns where those lie side by side.
  Tile load_keys(ValueId key, ValueId keys_left, ValueId depth) {
    const ValueId at = place(key_strides_, task_.kv_head, key, depth);
    const ValueId depth_left = columns_left(problem_.depth, tiles_.depth, depth);
    const ValueId row = dim(key_strides_.row), column = dim(key_strides_.column);
    if (keys_are_columns()) {
      return b_.load({k_, at, {column, row}, {depth_left, keys_left}}, {tiles_.depth, tiles_.keys});
    }
    return b_.load({k_, at, {row, column}, {keys_left, depth_left}}, {tiles_.keys, tiles_.depth});
  }

  // kᵀ[depth][keys] of what load_keys gave.
  Terms key_operand(Tile codes) {
    Terms terms = operand(codes, dtype(attention_.k));
    if (keys_are_columns()) return terms;
    for (Tile& term : terms) term = b_.transpose(term);
    return terms;
  }

  // The columns of v that go into the accumulator `index`.
  Tile load_values(ValueId key, ValueId keys_left, size_t index) {
    const auto first = static_cast<int64_t>(index) * tiles_.value_step;
    const ValueId column = b_.add(panel_, b_.index(first));
    return b_.load({v_,
                    place(value_strides_, task_.kv_head, key, column),
                    {dim(value_strides_.row), dim(value_strides_.column)},
                    {keys_left, columns_left(problem_.value_depth, tiles_.panel, column)}},
                   {tiles_.keys, accumulator_widths()[index]});
  }

  // Widths of the accumulators that make a panel.
  std::vector<int> accumulator_widths() const {
    std::vector<int> widths;
    for (int64_t done = 0; done < tiles_.panel; done += widths.back()) {
      widths.push_back(static_cast<int>(std::min<int64_t>(tiles_.value_step, tiles_.panel - done)));
    }
    return widths;
  }

  void walk_keys() {
    Tile maximum = per_row(kMinusInfinity), denominator = per_row(0);
    if (sinks_ != kNone) {
      const Tile sink =
          dequantize_tile(b_, b_.load({sinks_, task_.head, {}, {}}, {}), dtype(attention_.sinks));
      maximum = b_.splat(sink, {tiles_.queries});
      denominator = per_row(1);
    }
    if (attention_.rounds_probabilities()) return walk_twice(maximum, denominator);
    std::vector<ValueId> carried = {maximum, denominator};
    for (const int width : accumulator_widths()) carried.push_back(f32(0, {tiles_.queries, width}));
    const size_t end_of_sums = carried.size();
    const ValueId first = task_.first_key, last = task_.last_key;
    if (tiles_.ahead) {
      const ValueId left = b_.sub(last, first);
      carried.push_back(load_keys(first, left, b_.index(0)));
    }
    carried = b_.loop(
        first, last, b_.index(tiles_.keys), carried,
        [&](ValueId key, std::span<const ValueId> before) { return visit_keys(key, before); });
    store_result(one_over(carried[1]), std::span(carried).subspan(2, end_of_sums - 2));
  }

  // Maximum and denominator first, then rounded probabilities times values.
  void walk_twice(Tile maximum, Tile denominator) {
    const ValueId first = task_.first_key, last = task_.last_key, step = b_.index(tiles_.keys);
    const auto scores_from = [&](ValueId key) {
      const ValueId keys_left = b_.sub(last, key);
      return visible_scores(products(key, keys_left, kNone), key, keys_left);
    };
    const auto rows =
        b_.loop(first, last, step, {maximum, denominator}, [&](ValueId key, auto before) {
          const RowSoftmax softmax = add_scores(scores_from(key), before[0], before[1]);
          return std::vector<ValueId>{softmax.highest, softmax.total};
        });
    const Tile base = finite_base(rows[0]), scale = per_row(attention_.probability_scale);
    const Tile weight = b_.div(one_over(rows[1]), scale);
    std::vector<ValueId> accumulators;
    for (const int width : accumulator_widths())
      accumulators.push_back(f32(0, {tiles_.queries, width}));
    accumulators = b_.loop(first, last, step, accumulators, [&](ValueId key, auto before) {
      const Tile below = b_.sub({scores_from(key), spread(base, tiles_.keys)});
      const Tile p = b_.mul({b_.unary(Fn::kExp, below), spread(weight, tiles_.keys)});
      const Tile ratio = rounded_to(b_, p, attention_.probability_type);
      const Tile rounded = rounded_to(b_, ratio, attention_.probability_codes);
      // Every type of an operand holds these.
      const Terms weights{b_.cast(rounded, tiles_.exact ? DType::kBF16 : dtype(attention_.v))};
      std::vector<ValueId> after;
      for (size_t i = 0; i < before.size(); ++i) {
        const Tile values = load_values(key, b_.sub(last, key), i);
        after.push_back(dot_parts(b_, before[i], weights, operand(values, dtype(attention_.v))));
      }
      return after;
    });
    store_result(scale, accumulators);
  }

  // What a tile of scores makes of the rows' softmax.
  struct RowSoftmax {
    Tile highest, correction, p, total;
  };

  RowSoftmax add_scores(Tile scores, Tile highest_before, Tile total_before) {
    const Tile highest = b_.max(highest_before, b_.reduce(Fn::kMax, scores, 1));
    const Tile base = finite_base(highest);
    const Tile correction = b_.unary(Fn::kExp, b_.sub(highest_before, base));
    const Tile p = b_.unary(Fn::kExp, b_.sub(scores, spread(base, tiles_.keys)));
    const Tile total = b_.fma(total_before, correction, b_.reduce(Fn::kAdd, p, 1));
    return {highest, correction, p, total};
  }

  // Where nothing was seen yet the maximum is -inf, and -inf - -inf is no number.
  Tile finite_base(Tile highest) {
    const Tile none = b_.compare(Fn::kEqual, highest, per_row(kMinusInfinity));
    return b_.select(none, per_row(0), highest);
  }

  Tile one_over(Tile denominator) {
    const Tile nothing = rows_of_nothing(writer_, problem_, denominator);
    return b_.select({nothing, per_row(0), b_.div(per_row(1), denominator)});
  }

  std::vector<ValueId> visit_keys(ValueId key, std::span<const ValueId> before) {
    const ValueId keys_left = b_.sub(task_.last_key, key);
    const std::vector<int> widths = accumulator_widths();
    Tile these_keys = kNone, next_keys = kNone;
    std::vector<Tile> values(widths.size(), kNone);
    if (tiles_.ahead) {
      const ValueId step = b_.index(tiles_.keys);
      const ValueId left_then = b_.max({b_.index(0), b_.sub(keys_left, step)});
      these_keys = before.back();
      const ValueId next = b_.add(key, step);
      next_keys = load_keys(next, left_then, b_.index(0));
      for (size_t i = 0; i < widths.size(); ++i) values[i] = load_values(key, keys_left, i);
    }
    const Tile scores = visible_scores(products(key, keys_left, these_keys), key, keys_left);
    const RowSoftmax softmax = add_scores(scores, before[0], before[1]);
    std::vector<ValueId> after = {softmax.highest, softmax.total};
    const Terms weights = tiles_.exact ? split_bf16(b_, softmax.p, bf16_parts(DType::kF32))
                                       : Terms{b_.cast(softmax.p, dtype(attention_.v))};
    for (size_t i = 0; i < widths.size(); ++i) {
      if (values[i] == kNone) values[i] = load_values(key, keys_left, i);
      const Tile rescaled = b_.mul(before[2 + i], spread(softmax.correction, widths[i]));
      after.push_back(dot_parts(b_, rescaled, weights, operand(values[i], dtype(attention_.v))));
    }
    if (tiles_.ahead) after.push_back(next_keys);
    return after;
  }

  Tile visible_scores(Tile products, ValueId key, ValueId keys_left) {
    const std::vector<int> shape = {tiles_.queries, tiles_.keys};
    Tile scores = b_.mul(products, f32(problem_.scale, shape));
    if (attention_.softcap > 0) {
      const Tile cap = f32(attention_.softcap, shape);
      scores = b_.mul(b_.unary(Fn::kTanh, b_.div(scores, cap)), cap);
    }
    return hide(add_mask(scores, key, keys_left), key, keys_left);
  }

  // q x kᵀ; `loaded`: these keys, where they came ahead.
  Tile products(ValueId key, ValueId keys_left, Tile loaded) {
    const Tile zero = f32(0, {tiles_.queries, tiles_.keys});
    if (one_depth_step()) {
      if (loaded == kNone) loaded = load_keys(key, keys_left, b_.index(0));
      return dot_parts(b_, zero, queries_, key_operand(loaded));
    }
    return b_.loop({b_.index(0), b_.index(problem_.depth), b_.index(tiles_.depth)}, {zero},
                   [&](ValueId depth, auto sum) {
                     const auto queries = load_queries(depth);
                     const auto keys = key_operand(load_keys(key, keys_left, depth));
                     return std::vector<ValueId>{dot_parts(b_, sum[0], queries, keys)};
                   })[0];
  }

  // What the mask does not speak of is hidden: it may be shorter than the keys.
  Tile add_mask(Tile scores, ValueId key, ValueId keys_left) {
    if (mask_ == kNone) return scores;
    ValueId offset = b_.add({b_.mul(task_.batch, dim(problem_.mask_batch)),
                             b_.mul(task_.head, dim(problem_.mask_head))});
    offset = b_.add(offset, b_.mul(task_.first_query, dim(problem_.mask_query)));
    offset = b_.add(offset, b_.mul(key, dim(problem_.mask_key)));
    const ValueId stride = dim(problem_.mask_key);
    const ValueId masked = b_.select({b_.equal(stride, b_.index(0)), keys_left,
                                      b_.min(keys_left, b_.sub(dim(mask_keys()), key))});
    const bool keeps = problem_.mask_type == DType::kBool;
    const double outside = keeps ? 0 : kMinusInfinity;
    Tile codes;
    if (problem_.mask_query.is(0)) {
      codes = spread_columns(b_.load({mask_, offset, {stride}, {masked}}, {tiles_.keys}, outside));
    } else {
      codes =
          b_.load({mask_, offset, {dim(problem_.mask_query), stride}, {task_.queries_left, masked}},
                  {tiles_.queries, tiles_.keys}, outside);
    }
    return apply_mask(b_, problem_, scores, codes, 1);
  }

  Tile hide(Tile scores, ValueId key, ValueId keys_left) {
    const std::vector<int> shape = {tiles_.queries, tiles_.keys};
    const auto splat = [&](ValueId index) {
      return b_.splat(b_.from_index(index, DType::kI32), shape);
    };
    const Tile column = b_.iota(DType::kI32, shape, 1);
    Tile visible = b_.compare(Fn::kLess, column, splat(b_.min(keys_left, b_.index(tiles_.keys))));
    const auto require = [&](Fn relation, Tile distance, int64_t bound) {
      const Tile inside =
          b_.compare(relation, distance, b_.integer_constant(DType::kI32, bound, shape));
      visible = b_.binary(Fn::kAnd, visible, inside);
    };
    const bool causal = attention_.causal || attention_.causal_top_left;
    const bool ahead = causal || attention_.right_window >= 0;
    if (ahead || attention_.left_window >= 0) {
      // key - position of the query
      const ValueId corner = b_.sub(key, b_.add(task_.origin, task_.first_query));
      const Tile distance = b_.sub({b_.add(splat(corner), column), b_.iota(DType::kI32, shape, 0)});
      if (ahead) require(Fn::kLessEqual, distance, causal ? 0 : attention_.right_window);
      if (attention_.left_window >= 0) {
        require(Fn::kGreaterEqual, distance, -attention_.left_window);
      }
    }
    return b_.select(visible, scores, f32(kMinusInfinity, shape));
  }

  void store_result(Tile factor, std::span<const ValueId> accumulators) {
    const ir::ValueId y = node_.outputs[0];
    int64_t first = 0;
    for (const Tile sum : accumulators) {
      const int width = b_.type(sum).shape[1];
      const ValueId column = b_.add(panel_, b_.index(first));
      const Tile result = b_.mul(sum, spread(factor, width));
      b_.store({{y_,
                 place(problem_.y, task_.head, task_.first_query, column),
                 {dim(problem_.y.row), dim(problem_.y.column)},
                 {task_.queries_left, columns_left(problem_.value_depth, tiles_.panel, column)}},
                quantize_tile(b_, result, dtype(y))});
      first += width;
    }
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const FlashTiles tiles_;
  const HeadStrides query_strides_, key_strides_, value_strides_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId q_ = kNone, k_ = kNone, v_ = kNone, mask_ = kNone, lengths_ = kNone, sinks_ = kNone,
          y_ = kNone;
  AttentionTask task_{};
  ValueId panel_ = kNone;
  Terms queries_;  // where one step covers the depth
};

bool is_all_of_one_16_bit_type(const ir::Graph& graph, const ir::Node& node,
                               const ir::Attention& attention) {
  const DType dtype = graph.value(attention.q).dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16) return false;
  for (const ir::ValueId id : {attention.k, attention.v, node.outputs[0]}) {
    if (graph.value(id).dtype != dtype) return false;
  }
  return true;
}

}  // namespace

int64_t few_flash_queries(const ir::Graph& graph, const ir::Node& node,
                          const AttentionProblem& problem, const Settings& settings) {
  const bool exact = !is_all_of_one_16_bit_type(graph, node, problem.attention);
  return tile_sizes(exact, settings.gpu.value()).few_queries;
}

Launch flash_launch(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                    const AttentionOperands& operands, const Settings& settings, bool many,
                    const Dim& wanted) {
  const bool exact = !is_all_of_one_16_bit_type(graph, node, problem.attention);
  const FlashTiles tiles(problem, tile_sizes(exact, settings.gpu.value()), many, exact);
  return GpuFlash(graph, node, problem, operands, tiles).emit(wanted);
}

}  // namespace tenon::kernels
