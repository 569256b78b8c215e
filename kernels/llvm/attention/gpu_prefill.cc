#include "kernels/llvm/attention/gpu_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>

#include "codegen/arch_spec.h"
#include "kernels/llvm/attention/head_matrix.h"
#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Tiles = std::vector<ValueId>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int kQueries = 128, kThreads = 256;
// p may be so many powers of two above 1 before the maximum of its row moves and accumulators are
// rescaled: far from what f16 holds, and most rows then keep their first maximum.
constexpr double kHeadroom = 6;
// Of shared memory, for what is no key or value.
constexpr int64_t kReserved = 27 << 10, kExchanged = 64 << 10;
constexpr int kLeastDepth = 64, kMostDepth = 256, kWidePanel = 128;

// How one launch is cut. Registers decide: queries, scores, p and the accumulators of a panel of v
// are in them at the same time.
struct PrefillConfig {
  int keys, stages;
  int64_t panel;  // columns of v that a CTA computes

  PrefillConfig(const AttentionProblem& problem, const codegen::GpuTarget& gpu) {
    const bool exchanges =
        !codegen::arch_spec(gpu.arch).uses.wgmma;  // scores change threads through shared memory
    const int64_t room = gpu.shared_bytes - kReserved - (exchanges ? kExchanged : 0);
    const int64_t panels = (problem.value_depth + kWidePanel - 1) / kWidePanel;
    panel = problem.value_depth / panels;
    const bool crowded = problem.depth > kWidePanel || problem.attention.softcap > 0 ||
                         problem.attention.mask != ir::kNoValue;
    const int64_t key_bytes = (problem.depth + panel) * 2;
    keys = crowded || 2 * 128 * key_bytes > room ? 64 : 128;
    stages = static_cast<int>(std::min<int64_t>(room / (keys * key_bytes), 4));
  }

  bool fits() const { return stages >= 2; }
};

class GpuPrefill {
 public:
  GpuPrefill(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
             const AttentionOperands& operands, const codegen::GpuTarget& gpu)
      : graph_(graph),
        problem_(problem),
        attention_(problem.attention),
        config_(problem, gpu),
        sm_count_(gpu.sm_count),
        type_(graph.value(problem.attention.q).dtype),
        writer_("prefill_attention"),
        b_(writer_.builder),
        q_strides_(operands.q.strides),
        q_(writer_.buffer("q", type_, operands.q.buffer)),
        keys_(writer_, "k", type_, operands.keys, problem, problem.depth),
        values_(writer_, "v", type_, operands.values, problem, problem.value_depth) {
    const auto optional = [&](const char* name, ir::ValueId id) {
      return id == ir::kNoValue ? kNone
                                : writer_.buffer(name, storage_type(graph.value(id).dtype),
                                                 BufferArgument::value(id));
    };
    mask_ = optional("mask", attention_.mask);
    lengths_ = optional("lengths", attention_.kv_lengths);
    sinks_ = optional("sinks", attention_.sinks);
    y_ = writer_.buffer("y", type_, BufferArgument::value(node.outputs[0]));
    for (const HeadStrides* strides : {&q_strides_, &problem_.y}) {
      for (const Dim& dim : {strides->batch, strides->head, strides->row, strides->column}) {
        writer_.declare(dim);
      }
    }
    for (const Dim& dim : {problem_.mask_batch, problem_.mask_head, problem_.mask_query,
                           problem_.mask_key, mask_keys()}) {
      writer_.declare(dim);
    }
    keys_.declare(writer_);
    values_.declare(writer_);
    declare_task(writer_, problem_, kQueries);
    for (const Dim& dim : {heads(), work(), tasks()}) writer_.declare(dim);
  }

  Launch emit(const Dim& wanted) {
    for (const HeadColumns& part : head_columns(problem_.depth)) {
      key_rings_.push_back(b_.ring(type_, {config_.keys, part.width}, config_.stages));
    }
    for (const HeadColumns& part : head_columns(config_.panel)) {
      value_rings_.push_back(b_.ring(type_, {config_.keys, part.width}, config_.stages));
    }
    locate(b_.task());
    const Tiles first = load_ahead();
    b_.loop({b_.index(0), rounds(), b_.index(1)}, first,
            [&](ValueId round, std::span<const ValueId> ahead) { return emit_item(round, ahead); });
    Launch launch =
        writer_.finish(tasks() * wanted, problem_.all_keys * (problem_.depth + config_.panel));
    launch.threads = kThreads;
    return launch;
  }

 private:
  int64_t panels() const { return problem_.value_depth / config_.panel; }
  Dim heads() const { return problem_.batch * attention_.q_heads * panels(); }
  Dim query_tiles() const { return ceil_div(problem_.queries, kQueries); }
  Dim work() const { return heads() * query_tiles(); }
  Dim tasks() const { return min(work(), Dim(sm_count_)); }

  ValueId dim(const Dim& value) { return writer_.index(value); }
  Tile per_row(double value) { return b_.constant(DType::kF32, value, {kQueries}); }
  Tile scores_of(double value) { return b_.constant(DType::kF32, value, {kQueries, config_.keys}); }
  // A number for each row as a tile of `columns` columns.
  Tile spread(Tile rows, int columns) {
    return b_.broadcast(b_.reshape(rows, {kQueries, 1}), {kQueries, columns});
  }
  ValueId place(const HeadStrides& strides, ValueId column) {
    const ValueId head =
        b_.add({b_.mul(task_.batch, dim(strides.batch)), b_.mul(task_.head, dim(strides.head))});
    return b_.add(head, b_.add({b_.mul(task_.first_query, dim(strides.row)),
                                b_.mul(column, dim(strides.column))}));
  }

  // Scores come in this unit, times log2(e) the exponent of 2: the scale is never multiplied alone.
  double unit() const { return attention_.softcap > 0 ? attention_.softcap : problem_.scale; }
  double exponent_scale() const { return unit() * std::numbers::log2e; }
  // All scores of a row may be the lowest number: the difference of their products would have no
  // bit that is right, so that the product of their differences is taken.
  bool may_be_far_down() const {
    return mask_ != kNone &&
           (std::isfinite(attention_.mask_fill) || problem_.mask_type == DType::kF32 ||
            problem_.mask_type == DType::kBF16);
  }

  // Items are dealt to the CTAs to and fro, so that who has the longest item of a round has the
  // shortest of the next: dealt in turns, the first CTA of a causal prompt of 2048 tokens and 32
  // heads would have a fifth more to do than the mean.
  ValueId item_of(ValueId round) {
    const ValueId last = b_.sub({dim(tasks()), b_.index(1)});
    const ValueId back = b_.sub(last, b_.task());
    const ValueId is_forth = b_.equal({b_.rem(round, b_.index(2)), b_.index(0)});
    return b_.add({b_.mul(round, dim(tasks())), b_.select(is_forth, b_.task(), back)});
  }
  ValueId rounds() {
    const ValueId full = b_.div({dim(work()), dim(tasks())});
    const ValueId has_one_more = b_.less({item_of(full), dim(work())});
    return b_.select({has_one_more, b_.add(full, b_.index(1)), full});
  }

  // The last queries, which see most where a mask is causal, come first: what is left for the end
  // is short.
  void locate(ValueId item, ValueId length = kNone) {
    const ValueId heads_here = dim(heads()), tiles_here = dim(query_tiles());
    const ValueId head = b_.rem(item, heads_here);
    const ValueId tile = b_.sub({b_.sub(tiles_here, b_.index(1)), b_.div(item, heads_here)});
    const ValueId number = b_.add(b_.mul(b_.div(head, b_.index(panels())), tiles_here), tile);
    panel_ = b_.mul({b_.rem(head, b_.index(panels())), b_.index(config_.panel)});
    task_ = locate_task(writer_, problem_, number, kQueries, lengths_, length);
  }

  // What an item begins with: its queries, and how many keys count. The next one's are on their way
  // while this one ends.
  Tiles load_ahead() {
    Tiles ahead = load_queries();
    ahead.push_back(task_.length);
    return ahead;
  }

  // Returns what the next item begins with.
  Tiles emit_item(ValueId round, std::span<const ValueId> ahead) {
    queries_.assign(ahead.begin(), ahead.end() - 1);
    locate(item_of(round), ahead.back());
    find_tiles();
    const Tiles carried = walk_keys();
    const AttentionTask here = task_;
    const ValueId panel = panel_;
    const ValueId last = b_.sub({dim(work()), b_.index(1)});
    locate(b_.min(item_of(b_.add(round, b_.index(1))), last));
    Tiles next = load_ahead();
    task_ = here;
    panel_ = panel;
    store_result(last_product(carried));
    return next;
  }

  // Of the tiles [first, last), those in [whole, whole_end) are seen by all queries.
  void find_tiles() {
    const ValueId keys = b_.index(config_.keys), one = b_.index(1), zero = b_.index(0);
    const auto up = [&](ValueId key) {
      return b_.div(b_.add(key, b_.index(config_.keys - 1)), keys);
    };
    first_ = b_.div(task_.first_key, keys);
    last_ = b_.max(first_, up(task_.last_key));
    second_ = b_.min(b_.add(first_, one), last_);
    const ValueId position = b_.add(task_.origin, task_.first_query);
    ValueId whole_end = task_.length;
    if (sees_to_the_right()) {
      whole_end = b_.max(zero, b_.min(whole_end, b_.add(position, b_.index(right_window() + 1))));
    }
    ValueId whole = first_;
    if (attention_.left_window >= 0) {
      const ValueId begin = b_.add(position, b_.index(kQueries - 1 - attention_.left_window));
      whole = b_.max(first_, up(b_.max(zero, begin)));
    }
    const ValueId end = b_.div(whole_end, keys);
    edge_ = b_.select(b_.less(first_, end), first_, second_);
    edge_ = b_.select(b_.equal(first_, whole), edge_, second_);
    whole_ = b_.min(last_, b_.max(second_, whole));
    whole_end_ = b_.min(last_, b_.max(whole_, end));
  }

  bool is_causal() const { return attention_.causal || attention_.causal_top_left; }
  bool sees_to_the_right() const { return is_causal() || attention_.right_window >= 0; }
  int64_t right_window() const { return is_causal() ? 0 : attention_.right_window; }

  Tiles load_queries() {
    Tiles queries;
    for (const HeadColumns& part : head_columns(problem_.depth)) {
      queries.push_back(b_.load({q_,
                                 place(q_strides_, b_.index(part.first)),
                                 {dim(q_strides_.row), dim(q_strides_.column)},
                                 {task_.queries_left, kNone}},
                                {kQueries, part.width}));
    }
    return queries;
  }

  // A pipeline over steps [lo, hi); steps without keys or values fetch from behind the end, zeros.
  struct Fetched {
    bool keys, values;
  };
  template <typename Consume>
  Tiles steps(ValueId lo, ValueId hi, Fetched fetched, const Tiles& carried,
              const Consume& consume) {
    return b_.pipeline(
        config_.stages, lo, hi, carried,
        [&](ValueId step, ValueId stage) {
          const ValueId before = b_.sub(step, b_.index(1));
          fetch(keys_, key_rings_, stage, fetched.keys ? step : kNone, b_.index(0));
          fetch(values_, value_rings_, stage, fetched.values ? before : kNone, panel_);
        },
        [&](ValueId step, ValueId stage, std::span<const ValueId> before) {
          return consume(step, stage, before);
        });
  }

  void fetch(const HeadMatrix& from, const std::vector<ValueId>& rings, ValueId stage, ValueId tile,
             ValueId column) {
    const Builder::Matrix matrix = from.matrix(writer_);
    ValueId row = matrix.rows;
    if (tile != kNone) {
      row = b_.add(
          {from.row(writer_, task_.batch, task_.kv_head), b_.mul(tile, b_.index(config_.keys))});
    }
    ValueId at = b_.add(from.column(writer_, task_.kv_head), column);
    for (const ValueId ring : rings) {
      b_.tma_load(ring, stage, matrix, row, at);
      at = b_.add(at, b_.index(b_.type(ring).shape[1]));
    }
  }

  // Maximum of each row, or less by the headroom, its sum, p of the last scores, accumulators of
  // p x v but for the last p.
  Tiles walk_keys() {
    Tile maximum = per_row(kMinusInfinity), total = per_row(0);
    if (sinks_ != kNone) {
      const Tile sink = dequantize_tile(b_, b_.load({sinks_, task_.head, {}, {}}, {}),
                                        graph_.value(attention_.sinks).dtype);
      maximum = b_.splat(b_.div(sink, b_.constant(DType::kF32, unit())), {kQueries});
      total = per_row(1);
    }
    Tiles carried = {maximum, total, b_.constant(type_, 0, {kQueries, config_.keys})};
    for (const bool at_an_edge : {true, false}) {
      carried = steps(at_an_edge ? first_ : edge_, at_an_edge ? edge_ : second_, {true, false},
                      carried, [&](ValueId step, ValueId stage, std::span<const ValueId> before) {
                        const Tile mask = mask_codes(step);
                        const Tile all = masked(capped(scores(stage)), mask);
                        const Softened now = soften(at_an_edge ? hide(all, step) : all, before);
                        return Tiles{now.maximum, now.total, b_.cast(now.weights, type_)};
                      });
    }
    for (const int width : accumulator_widths()) {
      carried.push_back(b_.constant(DType::kF32, 0, {kQueries, width}));
    }
    const auto middle = [&](ValueId lo, ValueId hi, bool at_an_edge) {
      carried = steps(lo, hi, {true, true}, carried,
                      [&](ValueId step, ValueId stage, std::span<const ValueId> before) {
                        return both_products(step, stage, before, at_an_edge);
                      });
    };
    if (attention_.left_window >= 0) middle(second_, whole_, true);
    middle(whole_, whole_end_, false);
    middle(whole_end_, last_, true);
    return carried;
  }

  Tile scores(ValueId stage) {
    Tile accumulators = scores_of(0);
    for (size_t i = 0; i < queries_.size(); ++i) {
      const Tile keys = b_.read(key_rings_[i], stage, b_.type(key_rings_[i]).shape);
      accumulators = b_.dot(accumulators, queries_[i], b_.transpose(keys));
    }
    return accumulators;
  }

  Tile capped(Tile scores) {
    if (attention_.softcap == 0) return scores;
    return b_.unary(Fn::kTanh, b_.mul(scores, scores_of(problem_.scale / attention_.softcap)));
  }

  // Keys that the mask speaks of; 1 where it repeats.
  Dim mask_keys() const {
    if (attention_.mask == ir::kNoValue) return 1;
    const Shape& shape = *graph_.value(attention_.mask).shape;
    return shape.empty() ? Dim(1) : shape.back();
  }

  // Of the keys of a tile, read before its products begin. What a mask does not speak of is hidden:
  // it may be shorter than the keys.
  Tile mask_codes(ValueId tile) {
    if (mask_ == kNone) return kNone;
    const ValueId key = b_.mul(tile, b_.index(config_.keys)), stride = dim(problem_.mask_key);
    ValueId offset = b_.add({b_.mul(task_.batch, dim(problem_.mask_batch)),
                             b_.mul(task_.head, dim(problem_.mask_head))});
    offset = b_.add(offset, b_.mul(task_.first_query, dim(problem_.mask_query)));
    offset = b_.add(offset, b_.mul(key, stride));
    const ValueId keys_left = b_.sub(task_.length, key);
    const ValueId masked = b_.select({b_.equal(stride, b_.index(0)), keys_left,
                                      b_.min(keys_left, b_.sub(dim(mask_keys()), key))});
    const double outside = problem_.mask_type == DType::kBool ? 0 : kMinusInfinity;
    return b_.load(
        {mask_, offset, {dim(problem_.mask_query), stride}, {task_.queries_left, masked}},
        {kQueries, config_.keys}, outside);
  }

  Tile masked(Tile scores, Tile codes) {
    if (codes == kNone) return scores;
    return apply_mask(b_, problem_, scores, codes, 1 / unit());
  }

  // Two stages of 64 columns are one operand.
  bool accumulators_are_whole() const { return config_.panel == kWidePanel; }
  std::vector<int> accumulator_widths() const {
    if (accumulators_are_whole()) return {kWidePanel};
    std::vector<int> widths;
    for (const HeadColumns& part : head_columns(config_.panel)) widths.push_back(part.width);
    return widths;
  }

  // What the rings of values hold, as operands for the accumulators; `visible`: rows that count.
  Tiles values(ValueId stage, ValueId visible) {
    Tiles parts;
    for (const ValueId ring : value_rings_) {
      parts.push_back(b_.read(ring, stage, b_.type(ring).shape, kNone, {}, visible));
    }
    if (accumulators_are_whole()) return {b_.concat(parts, 1)};
    return parts;
  }

  Tiles both_products(ValueId step, ValueId stage, std::span<const ValueId> before,
                      bool at_an_edge) {
    const Tile mask = mask_codes(step);
    Tile visible = scores(stage);
    Tiles accumulators = values(stage, kNone);
    for (size_t i = 0; i < accumulators.size(); ++i)
      accumulators[i] = b_.dot(before[3 + i], before[2], accumulators[i]);
    visible = masked(capped(visible), mask);
    if (at_an_edge) visible = hide(visible, step);
    const Softened now = soften(visible, before);
    for (Tile& sum : accumulators) sum = b_.mul(sum, spread(now.correction, b_.type(sum).shape[1]));
    // Rounded only now: until here the product above reads the registers of those before.
    Tiles after = {now.maximum, now.total, b_.cast(now.weights, type_)};
    std::ranges::copy(accumulators, std::back_inserter(after));
    return after;
  }

  struct Softened {
    Tile maximum, total, weights, correction;  // weights: f32
  };

  Softened soften(Tile scores, std::span<const ValueId> before) {
    const double to_exponent = exponent_scale();
    Softened now;
    const Tile highest = b_.reduce(Fn::kMax, scores, 1);
    const Tile allowed = b_.add(before[0], per_row(kHeadroom / to_exponent));
    const Tile stays = b_.compare(Fn::kLessEqual, highest, allowed);
    now.maximum = b_.select(stays, before[0], highest);
    // Where nothing was seen yet the maximum is -inf, and -inf - -inf is no number.
    const Tile none = b_.compare(Fn::kEqual, now.maximum, per_row(kMinusInfinity));
    const Tile base = b_.select(none, per_row(0), now.maximum);
    const bool far = may_be_far_down();
    const Tile shift = far ? base : b_.mul(base, per_row(-to_exponent));
    const auto power = [&](Tile x, Tile below) {
      const Tile scale = b_.constant(DType::kF32, to_exponent, b_.type(x).shape);
      const Tile exponent = far ? b_.mul(b_.sub(x, below), scale) : b_.fma(x, scale, below);
      return b_.unary(Fn::kExp2, exponent);
    };
    now.correction = power(before[0], shift);
    now.weights = power(scores, spread(shift, config_.keys));
    now.total = b_.fma(before[1], now.correction, b_.reduce(Fn::kAdd, now.weights, 1));
    return now;
  }

  // Values behind the last visible key are memory that nobody may have written.
  Tiles last_product(Tiles carried) {
    const Tile weights = carried[2];
    const Tiles accumulators(carried.begin() + 3, carried.end());
    const ValueId any = b_.min({b_.index(1), b_.sub(last_, first_)});
    const Tiles result = steps(
        last_, b_.add(last_, any), {false, true}, accumulators,
        [&](ValueId step, ValueId stage, std::span<const ValueId> before) {
          const ValueId first_key = b_.mul({b_.sub(step, b_.index(1)), b_.index(config_.keys)});
          const ValueId visible = b_.sub(task_.last_key, first_key);
          Tiles after = values(stage, visible);
          for (size_t i = 0; i < after.size(); ++i) {
            after[i] = b_.dot(before[i], weights, after[i]);
          }
          return after;
        });
    std::ranges::copy(result, carried.begin() + 3);
    return carried;
  }

  // Of the keys of a tile a query sees those from one column to another: one comparison with a
  // number of its row, or two.
  Tile hide(Tile scores, ValueId tile) {
    const ValueId keys = b_.index(config_.keys), key = b_.mul(tile, keys);
    const auto splat = [&](ValueId index) {
      return b_.splat(b_.from_index(index, DType::kI32), {kQueries});
    };
    // The column of the first query's own position.
    const ValueId own = b_.sub(b_.add(task_.origin, task_.first_query), key);
    const Tile row = b_.iota(DType::kI32, {kQueries}, 0);
    const Tile column = b_.iota(DType::kI32, {kQueries, config_.keys}, 1);
    Tile end = splat(b_.min(b_.sub(task_.length, key), keys));
    if (sees_to_the_right()) {
      end = b_.min(end, b_.add(row, splat(b_.add(own, b_.index(right_window() + 1)))));
    }
    Tile visible = b_.compare(Fn::kLess, column, spread(end, config_.keys));
    if (attention_.left_window >= 0) {
      const Tile begin = b_.add(row, splat(b_.sub(own, b_.index(attention_.left_window))));
      const Tile behind = b_.compare(Fn::kGreaterEqual, column, spread(begin, config_.keys));
      visible = b_.binary(Fn::kAnd, visible, behind);
    }
    return b_.select(visible, scores, scores_of(kMinusInfinity));
  }

  void store_result(const Tiles& carried) {
    const Tile denominator = carried[1];
    const Tile nothing = rows_of_nothing(writer_, problem_, denominator);
    const Tile factor = b_.select({nothing, per_row(0), b_.unary(Fn::kReciprocal, denominator)});
    ValueId column = panel_;
    for (size_t i = 3; i < carried.size(); ++i) {
      const int width = b_.type(carried[i]).shape[1];
      const Tile result = b_.mul(carried[i], spread(factor, width));
      b_.store({{y_,
                 place(problem_.y, column),
                 {dim(problem_.y.row), dim(problem_.y.column)},
                 {task_.queries_left, kNone}},
                quantize_tile(b_, result, type_)});
      column = b_.add(column, b_.index(width));
    }
  }

  const ir::Graph& graph_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const PrefillConfig config_;
  const int sm_count_;
  const DType type_;
  LaunchWriter writer_;
  Builder& b_;
  const HeadStrides q_strides_;
  ValueId q_;
  HeadMatrix keys_, values_;
  ValueId mask_ = kNone, lengths_ = kNone, sinks_ = kNone, y_ = kNone;
  std::vector<ValueId> key_rings_, value_rings_;
  AttentionTask task_{};
  ValueId panel_ = kNone;
  // Numbers of tiles: the range, its second one, those that need no look at places. The first tile
  // looks at places before `edge_`.
  ValueId first_ = kNone, edge_ = kNone, second_ = kNone, whole_ = kNone, whole_end_ = kNone,
          last_ = kNone;
  std::vector<Tile> queries_;
};

}  // namespace

Support supports_prefill(const ir::Graph& graph, const ir::Node& node,
                         const AttentionProblem& problem, const Settings& settings) {
  const ir::Attention& attention = problem.attention;
  if (!settings.gpu->pipelines)
    return Support::no(settings.gpu->arch + " has no asynchronous copies to shared memory");
  const DType type = graph.value(attention.q).dtype;
  if (type != DType::kF16 && type != DType::kBF16) return Support::no("q is not f16 or bf16");
  for (const ir::ValueId id : {attention.k, attention.v, node.outputs[0]}) {
    if (graph.value(id).dtype != type)
      return Support::no("q, k, v and the output have different types");
  }
  const bool masked = attention.mask != ir::kNoValue;
  if (masked && (problem.depth > kWidePanel || attention.softcap > 0)) {
    return Support::no("a mask with head_size above 128 or a softcap needs too many registers");
  }
  for (const int64_t depth : {problem.depth, problem.value_depth}) {
    if (depth % 16 != 0 || depth < kLeastDepth || depth > kMostDepth) {
      return Support::no(fmt::format("head_size {} is not a multiple of 16 from {} to {}", depth,
                                     kLeastDepth, kMostDepth));
    }
  }
  if (problem.value_depth > kWidePanel && problem.value_depth % 32 != 0) {
    return Support::no("a v_head_size above 128 is not a multiple of 32");
  }
  if (attention.softcap <= 0 && problem.scale <= 0) return Support::no("the scale is not positive");
  if (!PrefillConfig(problem, *settings.gpu).fits()) {
    return Support::no("two stages of 64 KV rows do not fit shared memory");
  }
  for (const HeadStrides* strides : {&problem.k, &problem.v}) {
    if (!strides->column.is(1))
      return Support::no("transposed K or V ([B, H, D, S]) is not supported");
  }
  return Support::yes();
}

Launch prefill_launch(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                      const AttentionOperands& operands, const Settings& settings,
                      const Dim& wanted) {
  return GpuPrefill(graph, node, problem, operands, *settings.gpu).emit(wanted);
}

}  // namespace tenon::kernels
