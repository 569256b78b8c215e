#include "kernels/llvm/attention/one_pass.h"

#include <limits>
#include <utility>

#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kKeyBlock = 48;  // a multiple of the tallest micro tiles
constexpr int kTurned = 4;         // columns of queries and results that are transposed at once
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
using Nothing = std::vector<ValueId>;

// What stands in the lanes of a task's tiles: queries of one head, or the heads that share keys,
// each with one query.
enum class Lanes : uint8_t { kQueries, kHeads };

class OnePass {
 public:
  OnePass(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
          const AttentionOperands& operands, const MicroTile& tile, Lanes lanes)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        tile_(tile),
        query_strides_(operands.q.strides),
        key_strides_(operands.keys.strides),
        value_strides_(operands.values.strides),
        lanes_(tile.columns),
        lanes_are_heads_(lanes == Lanes::kHeads),
        writer_(lanes_are_heads_ ? "attention_step" : "attention"),
        b_(writer_.builder) {
    declare(operands);
  }

  Launch emit() {
    lanes_are_heads_ ? locate_heads() : locate_queries();
    load_queries();
    walk_keys();
    store_result();
    const Dim tasks =
        lanes_are_heads_ ? problem_.batch * attention_.kv_heads * head_blocks()
                         : problem_.batch * attention_.q_heads * ceil_div(problem_.queries, lanes_);
    const int64_t per_key = (problem_.depth + problem_.value_depth) * lanes_ / 40 + 1;
    return writer_.finish(tasks, problem_.all_keys * per_key);
  }

 private:
  int64_t queries_per_task() const { return lanes_are_heads_ ? 1 : lanes_; }
  int64_t head_blocks() const { return (problem_.group() + lanes_ - 1) / lanes_; }

  void locate_queries() {
    task_ = locate_task(writer_, problem_, b_.task(), lanes_, lengths_);
    lanes_left_ = task_.queries_left;
  }

  // Tasks are heads of keys, over all batch rows, times blocks of the heads that share them.
  void locate_heads() {
    const ValueId blocks = b_.index(head_blocks()), group = b_.index(problem_.group());
    const ValueId in_group = b_.mul({b_.rem(b_.task(), blocks), b_.index(lanes_)});
    const ValueId first = b_.add(b_.mul(b_.div(b_.task(), blocks), group), in_group);
    task_ = locate_task(writer_, problem_, first, 1, lengths_);
    lanes_left_ = b_.sub(group, in_group);
  }

  const Dim& lane_stride(const HeadStrides& strides) const {
    return lanes_are_heads_ ? strides.head : strides.row;
  }

  void declare(const AttentionOperands& operands) {
    const auto value_buffer = [&](const char* name, ir::ValueId id) {
      return id == ir::kNoValue ? kNone
                                : writer_.buffer(name, storage_type(graph_.value(id).dtype),
                                                 BufferArgument::value(id));
    };
    q_ = writer_.buffer("q", storage_type(graph_.value(attention_.q).dtype), operands.q.buffer);
    k_ = writer_.buffer("k", DType::kF32, operands.keys.buffer);
    v_ = writer_.buffer("v", DType::kF32, operands.values.buffer);
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
    for (const Dim& dim :
         {problem_.mask_batch, problem_.mask_head, problem_.mask_query, problem_.mask_key}) {
      writer_.declare(dim);
    }
    declare_task(writer_, problem_, queries_per_task());
  }

  ValueId dim(const Dim& value) { return writer_.index(value); }
  Tile f32(double value) { return b_.constant(DType::kF32, value, {lanes_}); }
  ValueId scratch_row(ValueId row) { return b_.mul(row, b_.index(lanes_)); }

  ValueId head_offset(const HeadStrides& strides, ValueId head) {
    return b_.add({b_.mul(task_.batch, dim(strides.batch)), b_.mul(head, dim(strides.head))});
  }

  void load_queries() {
    queries_ = b_.alloc(DType::kF32, problem_.depth * lanes_);
    accumulators_ = b_.alloc(DType::kF32, problem_.value_depth * lanes_);
    scores_ = b_.alloc(DType::kF32, kKeyBlock * lanes_);
    const ValueId base = b_.add({head_offset(query_strides_, task_.head),
                                 b_.mul(task_.first_query, dim(query_strides_.row))});
    const auto scaled = [&](Tile codes) {
      const Tile numbers = dequantize_tile(b_, codes, graph_.value(attention_.q).dtype);
      return b_.mul(numbers, b_.constant(DType::kF32, problem_.scale, b_.type(numbers).shape));
    };
    const ValueId lane = dim(lane_stride(query_strides_)), column = dim(query_strides_.column);
    for_columns(
        query_strides_, problem_.depth,
        [&](ValueId d) {
          const Tile rows =
              b_.load({q_, b_.add(base, d), {lane, b_.index(1)}, {}}, {lanes_, kTurned});
          b_.store({{queries_, scratch_row(d), {}, {}}, b_.transpose(scaled(rows))});
        },
        [&](ValueId d) {
          const ValueId at = b_.add(base, b_.mul(d, column));
          const Tile codes = b_.load({q_, at, {lane}, {lanes_left_}}, {lanes_});
          b_.store({{queries_, scratch_row(d), {}, {}}, scaled(codes)});
        });
    b_.loop({b_.index(0), b_.index(problem_.value_depth), b_.index(1)}, {}, [&](ValueId d, auto) {
      b_.store({{accumulators_, scratch_row(d), {}, {}}, f32(0)});
      return Nothing{};
    });
  }

  // Runs `turned` on kTurned columns of a matrix at a time where they lie side by side and no lane
  // is missing, else `single` on one after the other.
  template <typename Turned, typename Single>
  void for_columns(const HeadStrides& strides, int64_t columns, const Turned& turned,
                   const Single& single) {
    const auto walk = [&](int64_t step, const auto& body) {
      b_.loop({b_.index(0), b_.index(columns), b_.index(step)}, {}, [&](ValueId d, auto) {
        body(d);
        return Nothing{};
      });
      return Nothing{};
    };
    if (!strides.column.is(1) || columns % kTurned != 0) {
      walk(1, single);
      return;
    }
    b_.branch(
        b_.less(lanes_left_, b_.index(lanes_)), [&] { return walk(1, single); },
        [&] { return walk(kTurned, turned); });
  }

  void walk_keys() {
    Tile maximum = f32(kMinusInfinity), denominator = f32(0);
    if (sinks_ != kNone) {
      maximum = load_sinks();
      denominator = f32(1);
    }
    const bool twice = attention_.rounds_probabilities();
    const auto rows =
        for_key_blocks({maximum, denominator}, [&](ValueId key, ValueId count, auto carried) {
          multiply_queries(key, count);
          const Tile highest = mask_scores(key, count, carried[0]);
          const Tile base = finite_base(highest);
          const Tile correction = exp_at_most_one(b_, b_.sub(carried[0], base));
          const Tile total = exponentiate(count, base, b_.mul(carried[1], correction));
          if (!twice) multiply_values(key, count, correction);
          return std::vector<ValueId>{highest, total};
        });
    const Tile nothing = rows_of_nothing(writer_, problem_, rows[1]);
    factor_ = b_.select({nothing, f32(0), b_.div(f32(1), rows[1])});
    if (twice) add_rounded_values(rows[0]);
  }

  // Runs `body(key, count, carried)` over the blocks of keys that some query sees.
  template <typename Body>
  std::vector<ValueId> for_key_blocks(std::vector<ValueId> initial, const Body& body) {
    const ValueId first = task_.first_key, last = task_.last_key;
    return b_.loop(first, last, b_.index(kKeyBlock), std::move(initial),
                   [&](ValueId key, auto carried) {
                     return body(key, b_.min({b_.index(kKeyBlock), b_.sub(last, key)}), carried);
                   });
  }

  // Where nothing was seen yet the maximum is -inf, and -inf - -inf is no number.
  Tile finite_base(Tile highest) {
    const Tile none = b_.compare(Fn::kEqual, highest, f32(kMinusInfinity));
    return b_.select(none, f32(0), highest);
  }

  // The second pass, where maximum and denominator of all keys are known.
  void add_rounded_values(Tile maximum) {
    const Tile base = finite_base(maximum), scale = f32(attention_.probability_scale);
    const Tile share = b_.div(factor_, scale);
    for_key_blocks({}, [&](ValueId key, ValueId count, auto) {
      multiply_queries(key, count);
      mask_scores(key, count, maximum);
      b_.loop({b_.index(0), count, b_.index(1)}, {}, [&](ValueId row, auto) {
        const codegen::Access at{scores_, scratch_row(row), {}, {}};
        const Tile p = exp_at_most_one(b_, b_.sub(b_.load(at, {lanes_}), base));
        const Tile ratio = rounded_to(b_, b_.mul(p, share), attention_.probability_type);
        b_.store(at, rounded_to(b_, ratio, attention_.probability_codes));
        return Nothing{};
      });
      multiply_values(key, count, f32(1));
      return Nothing{};
    });
    factor_ = scale;
  }

  Tile load_sinks() {
    const DType dtype = graph_.value(attention_.sinks).dtype;
    if (lanes_are_heads_) {
      const Tile codes = b_.load({sinks_, task_.head, {b_.index(1)}, {lanes_left_}}, {lanes_});
      return b_.cast(dequantize_tile(b_, codes, dtype), DType::kF32);
    }
    const Tile sink = dequantize_tile(b_, b_.load({sinks_, task_.head, {}, {}}, {}), dtype);
    return b_.splat(b_.cast(sink, DType::kF32), {lanes_});
  }

  // Runs `body(row, height)` over [0, count) in micro tiles, tallest first.
  template <typename Body>
  void for_micro_tiles(ValueId count, const Body& body) {
    ValueId done = b_.index(0);
    for (const int height : tile_.heights) {
      const ValueId tiles = b_.div({b_.sub(count, done), b_.index(height)});
      const ValueId end = b_.add(done, b_.mul(tiles, b_.index(height)));
      b_.loop(done, end, b_.index(height), {}, [&](ValueId row, auto) {
        body(row, height);
        return Nothing{};
      });
      done = end;
    }
  }

  // acc += left[height, k] x right[k, lanes] for k in [0, count).
  Tile accumulate(Tile acc, int height, ValueId count, ValueId left, ValueId left_offset,
                  ValueId row_stride, ValueId k_stride, ValueId right) {
    const auto trip = [&](ValueId at, Tile sum, int step) {
      const Tile a =
          b_.load({left, b_.add(left_offset, b_.mul(at, k_stride)), {row_stride, k_stride}, {}},
                  {height, step});
      return b_.dot(sum, a, b_.load({right, scratch_row(at), {}, {}}, {step, lanes_}));
    };
    const int step = tile_.k_step(height);
    const ValueId even = b_.mul({b_.div(count, b_.index(step)), b_.index(step)});
    acc = b_.loop({b_.index(0), even, b_.index(step)}, {acc}, [&](ValueId at, auto carried) {
      return std::vector<ValueId>{trip(at, carried[0], step)};
    })[0];
    return b_.loop(even, count, b_.index(1), {acc}, [&](ValueId at, auto carried) {
      return std::vector<ValueId>{trip(at, carried[0], 1)};
    })[0];
  }

  void multiply_queries(ValueId key, ValueId count) {
    const ValueId base =
        b_.add({head_offset(key_strides_, task_.kv_head), b_.mul(key, dim(key_strides_.row))});
    for_micro_tiles(count, [&](ValueId row, int height) {
      const ValueId offset = b_.add(base, b_.mul(row, dim(key_strides_.row)));
      const Tile zero = b_.constant(DType::kF32, 0, {height, lanes_});
      const ValueId depth = b_.index(problem_.depth);
      const ValueId row_stride = dim(key_strides_.row), column_stride = dim(key_strides_.column);
      const Tile scores =
          accumulate(zero, height, depth, k_, offset, row_stride, column_stride, queries_);
      b_.store({scores_, scratch_row(row), {}, {}}, scores);
    });
  }

  // Adds the mask, hides keys that a query may not see; returns the new maximum.
  Tile mask_scores(ValueId key, ValueId count, Tile maximum) {
    return b_.loop({b_.index(0), count, b_.index(1)}, {maximum},
                   [&](ValueId row, auto carried) -> std::vector<ValueId> {
                     Tile score = b_.load({scores_, scratch_row(row), {}, {}}, {lanes_});
                     if (attention_.softcap > 0) {
                       const Tile cap = f32(attention_.softcap);
                       score = b_.mul(b_.unary(Fn::kTanh, b_.div(score, cap)), cap);
                     }
                     score = add_mask(score, b_.add(key, row));
                     score = hide(score, b_.add(key, row));
                     b_.store({scores_, scratch_row(row), {}, {}}, score);
                     return {b_.max(carried[0], score)};
                   })[0];
  }

  Tile add_mask(Tile score, ValueId key) {
    if (mask_ == kNone) return score;
    ValueId offset = b_.add({b_.mul(task_.batch, dim(problem_.mask_batch)),
                             b_.mul(task_.head, dim(problem_.mask_head))});
    offset = b_.add(offset, b_.mul(task_.first_query, dim(problem_.mask_query)));
    offset = b_.add(offset, b_.mul(key, dim(problem_.mask_key)));
    const Dim& stride = lanes_are_heads_ ? problem_.mask_head : problem_.mask_query;
    Tile value;
    if (stride.is(0)) {
      value = b_.splat(b_.load({mask_, offset, {}, {}}, {}), {lanes_});
    } else {
      value = b_.load({mask_, offset, {dim(stride)}, {lanes_left_}}, {lanes_});
    }
    return apply_mask(b_, problem_, score, value, 1);
  }

  Tile hide(Tile score, ValueId key) {
    const bool causal = attention_.causal || attention_.causal_top_left;
    if (!causal && attention_.left_window < 0 && attention_.right_window < 0) return score;
    const auto splat = [&](ValueId index) {
      return b_.splat(b_.from_index(index, DType::kI32), {lanes_});
    };
    // key - position of the query in each lane
    Tile distance = splat(b_.sub(key, b_.add(task_.origin, task_.first_query)));
    if (!lanes_are_heads_) distance = b_.sub(distance, b_.iota(DType::kI32, {lanes_}, 0));
    const auto limit = [&](Fn outside, int64_t bound) {
      const Tile hidden =
          b_.compare(outside, distance, b_.integer_constant(DType::kI32, bound, {lanes_}));
      score = b_.select(hidden, f32(kMinusInfinity), score);
    };
    if (causal) limit(Fn::kGreater, 0);
    if (!causal && attention_.right_window >= 0) limit(Fn::kGreater, attention_.right_window);
    if (attention_.left_window >= 0) limit(Fn::kLess, -attention_.left_window);
    return score;
  }

  Tile exponentiate(ValueId count, Tile base, Tile total) {
    return b_.loop({b_.index(0), count, b_.index(1)}, {total},
                   [&](ValueId row, auto carried) -> std::vector<ValueId> {
                     const codegen::Access at{scores_, scratch_row(row), {}, {}};
                     const Tile p = exp_at_most_one(b_, b_.sub(b_.load(at, {lanes_}), base));
                     b_.store(at, p);
                     return {b_.add(carried[0], p)};
                   })[0];
  }

  void multiply_values(ValueId key, ValueId count, Tile correction) {
    const ValueId base =
        b_.add({head_offset(value_strides_, task_.kv_head), b_.mul(key, dim(value_strides_.row))});
    for_micro_tiles(b_.index(problem_.value_depth), [&](ValueId d, int height) {
      const codegen::Access at{accumulators_, scratch_row(d), {}, {}};
      const Tile scale = b_.broadcast(correction, {height, lanes_});
      const Tile before = b_.mul(b_.load(at, {height, lanes_}), scale);
      const ValueId offset = b_.add(base, b_.mul(d, dim(value_strides_.column)));
      const ValueId column_stride = dim(value_strides_.column),
                    row_stride = dim(value_strides_.row);
      b_.store(at,
               accumulate(before, height, count, v_, offset, column_stride, row_stride, scores_));
    });
  }

  void store_result() {
    const ValueId base = b_.add(
        {head_offset(problem_.y, task_.head), b_.mul(task_.first_query, dim(problem_.y.row))});
    const DType dtype = graph_.value(node_.outputs[0]).dtype;
    const ValueId lane = dim(lane_stride(problem_.y)), column = dim(problem_.y.column);
    for_columns(
        problem_.y, problem_.value_depth,
        [&](ValueId d) {
          const Tile accumulators =
              b_.load({accumulators_, scratch_row(d), {}, {}}, {kTurned, lanes_});
          const Tile values = b_.mul(accumulators, b_.broadcast(factor_, {kTurned, lanes_}));
          b_.store({{y_, b_.add(base, d), {lane, b_.index(1)}, {}},
                    quantize_tile(b_, b_.transpose(values), dtype)});
        },
        [&](ValueId d) {
          const Tile value =
              b_.mul(b_.load({accumulators_, scratch_row(d), {}, {}}, {lanes_}), factor_);
          const ValueId at = b_.add(base, b_.mul(d, column));
          b_.store({y_, at, {lane}, {lanes_left_}}, quantize_tile(b_, value, dtype));
        });
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const MicroTile& tile_;
  const HeadStrides query_strides_, key_strides_, value_strides_;
  int lanes_;
  bool lanes_are_heads_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId q_ = kNone, k_ = kNone, v_ = kNone, mask_ = kNone, lengths_ = kNone, sinks_ = kNone,
          y_ = kNone;
  AttentionTask task_{};
  ValueId lanes_left_ = kNone;
  ValueId queries_ = kNone, accumulators_ = kNone, scores_ = kNone;  // scratch
  Tile factor_ = kNone;  // of accumulators in the result
};

// As many lanes as heads share keys, in whole registers.
MicroTile step_tile(const AttentionProblem& problem, const codegen::HostTarget& host) {
  const MicroTile tile = MicroTile::for_host(host);
  int lanes = host.lanes_f32();
  while (lanes < problem.group() && lanes < tile.columns) lanes *= 2;
  if (lanes >= tile.columns) return tile;
  // Twelve accumulators in flight hide the latency of one.
  return {lanes, {12, 4, 1}, lanes / host.lanes_f32(), tile.by_lane};
}

}  // namespace

std::vector<Launch> one_pass_launches(const ir::Graph& graph, const ir::Node& node,
                                      const AttentionProblem& problem,
                                      const AttentionOperands& operands,
                                      const codegen::HostTarget& host) {
  const Dim one = has_few_queries(problem, 1), others = 1 - one;
  std::vector<Launch> launches;
  const auto add = [&](const MicroTile& tile, Lanes lanes, const Dim& used) {
    if (used.is(0)) return;
    Launch launch = OnePass(graph, node, problem, operands, tile, lanes).emit();
    launch.tasks = launch.tasks * used;
    launches.push_back(std::move(launch));
  };
  add(step_tile(problem, host), Lanes::kHeads, one);
  add(MicroTile::for_host(host), Lanes::kQueries, others);
  return launches;
}

}  // namespace tenon::kernels
