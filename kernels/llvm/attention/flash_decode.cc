#include "kernels/llvm/attention/flash_decode.h"

#include <algorithm>
#include <map>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include "kernels/llvm/attention/flash_decode_codes.h"
#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/flash_decode_partials.h"
#include "kernels/llvm/attention/flash_decode_queries.h"
#include "kernels/llvm/attention/flash_decode_scores.h"
#include "kernels/llvm/attention/flash_decode_token.h"
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

constexpr int kRows = FlashDecodeConfig::kRows;
constexpr double kMinusInfinity = FlashDecodeScores::kHidden, kLog2E = std::numbers::log2e;

BufferArgument add_counters(Lowered& lowered, const Dim& count) {
  lowered.counters.push_back(count);
  return BufferArgument::counters(static_cast<int32_t>(lowered.counters.size()) - 1);
}

class FlashDecode {
 public:
  FlashDecode(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
              const AttentionOperands& operands, const FlashDecodeConfig& config, int sm_count,
              bool adds_token, Lowered& lowered)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        config_(config),
        group_(static_cast<int>(problem.group())),
        most_queries_(config.kept_rows / group_),
        query_strides_(operands.q.strides),
        split_kv_(config.split_kv(problem, sm_count)),
        ctas_(split_kv_ + (adds_token ? config.spare_ctas(problem, sm_count) : Dim(0))),
        partials_(ctas_ + (adds_token ? 1 : 0)),
        writer_("flash_decode"),
        b_(writer_.builder),
        q_(writer_.buffer("q", dtype(attention_.q), operands.q.buffer)),
        keys_(writer_, "k", stage_type(), operands.keys, problem, fetched(problem.depth)),
        values_(writer_, "v", stage_type(), operands.values, problem, fetched(problem.value_depth)),
        scores_(writer_, graph, problem, config),
        lengths_(optional_buffer("lengths", attention_.kv_lengths)),
        sinks_(optional_buffer("sinks", attention_.sinks)),
        meeting_(writer_, graph, problem, config, partials_, lowered),
        counters_(writer_.buffer("counters", DType::kI32, add_counters(lowered, heads()))),
        y_(optional_buffer("y", node.outputs[0])) {
    if (adds_token) token_.emplace(writer_, graph, node, problem, q_);
    if (has_codes()) codes_.emplace(writer_, graph, problem, config_);
    declare();
  }

  Launch emit(const Dim& wanted) {
    locate();
    make_rings();
    stage_queries();
    // While keys are on their way.
    const TokenPartial added = token_ ? attend_token() : TokenPartial{};
    const std::vector<Tile> ends = walk_keys();
    if (token_) store_partial(added);
    meeting_.store_warps(split_, ends);
    // A head that is not split waits for nobody.
    const ValueId arrived = b_.branch(
        b_.less({b_.index(1), dim(ctas_)}),
        [&] { return std::vector{b_.arrive(counters_, head_number_)}; },
        [&] { return std::vector{b_.index(0)}; })[0];
    b_.branch(b_.equal(arrived, b_.sub({dim(ctas_), b_.index(1)})), [&] {
      b_.store({counters_, head_number_}, b_.integer_constant(DType::kI32, 0));
      meeting_.for_queries([&](ValueId query) { store_result(query); });
      return std::vector<ValueId>{};
    });
    // Stores into the caller's memory come after the wait of PDL: nothing else waits for them.
    if (token_) store_token(added);
    Launch launch = writer_.finish(heads() * ctas_ * wanted, 1000);
    launch.threads = config_.threads();
    launch.kernel.ctas_per_sm = config_.resident_ctas;
    if (token_) {
      launch.checks = position_checks(problem_);
      // Rows of past that count are not written, though present may be the same memory.
      for (codegen::Parameter& parameter : launch.kernel.parameters) {
        if (parameter.name == "k" || parameter.name == "v") parameter.constant = true;
      }
    }
    return launch;
  }

 private:
  DType dtype(ir::ValueId id) const { return graph_.value(id).dtype; }
  bool has_codes() const { return config_.codes > 1; }
  DType stage_type() const { return has_codes() ? DType::kU32 : dtype(attention_.k); }
  // Elements of a stage that a head's row of so many columns takes.
  int64_t fetched(int64_t depth) const {
    return has_codes() ? problem_.cache_width(depth) / 4 : depth;
  }
  std::vector<int> stage_shape() const {
    return {config_.keys(), has_codes() ? config_.words() : config_.columns};
  }
  int box_columns() const { return config_.columns * config_.codes; }  // of a head
  ValueId dim(const Dim& value) { return writer_.index(value); }
  ValueId optional_buffer(const char* name, ir::ValueId id) {
    if (id == ir::kNoValue) return kNone;
    return writer_.buffer(name, storage_type(dtype(id)), BufferArgument::value(id));
  }
  Dim heads() const { return problem_.batch * attention_.kv_heads; }
  int value_columns() const { return config_.value_boxes * config_.columns; }
  int all_rows() const { return config_.rows(); }
  Tile f32(double value, std::vector<int> shape) { return b_.constant(DType::kF32, value, shape); }
  Tile exp2(Tile x) { return b_.unary(Fn::kExp2, x); }

  void declare() {
    keys_.declare(writer_);
    values_.declare(writer_);
    for (const HeadStrides* strides : {&query_strides_, &problem_.y}) {
      for (const Dim& dim : {strides->batch, strides->head, strides->row, strides->column}) {
        writer_.declare(dim);
      }
    }
    for (const Dim& dim : {split_kv_, ctas_, partials_}) writer_.declare(dim);
    scores_.declare();
    declare_task(writer_, problem_, most_queries_);
  }

  void locate() {
    split_ = b_.rem({b_.task(), dim(ctas_)});
    head_number_ = b_.div({b_.task(), dim(ctas_)});
    meeting_.locate(head_number_);
    // Of the first head of the group; there is one tile of queries.
    const ValueId query_tiles = dim(ceil_div(problem_.queries, most_queries_));
    const ValueId first = b_.mul(b_.mul(head_number_, b_.index(group_)), query_tiles);
    task_ = locate_task(writer_, problem_, first, most_queries_, lengths_);
    if (codes_) codes_->locate(task_);
    if (!token_) return;
    const ValueId before = b_.max({b_.index(0), b_.sub(task_.length, b_.index(1))});
    kept_ = b_.min(dim(problem_.past), before);
    token_->locate(task_, kept_);
    sees_token_ = b_.less(kept_, task_.length);
    task_.last_key = b_.min(task_.last_key, kept_);
    task_.first_key = b_.min(task_.first_key, task_.last_key);
  }

  void make_rings() {
    const auto rings = [&](int boxes) {
      std::vector<ValueId> made;
      for (int i = 0; i < boxes / config_.codes; ++i) {
        made.push_back(b_.ring(stage_type(), stage_shape(), config_.stages));
      }
      return made;
    };
    key_rings_ = rings(config_.key_boxes);
    value_rings_ = rings(config_.value_boxes);
  }

  ValueId place(const HeadStrides& strides, ValueId query, int64_t column) {
    const ValueId head =
        b_.add({b_.mul(task_.batch, dim(strides.batch)), b_.mul(task_.head, dim(strides.head))});
    return b_.add(head, b_.add({b_.mul(query, dim(strides.row)),
                                b_.mul({b_.index(column), dim(strides.column)})}));
  }

  // Rows of all warps alike, in shared memory [box][row][column]; those that are left are zeros.
  void stage_queries() {
    const DType type = dtype(attention_.q);
    const int box = kRows * box_columns(), of_product = kRows * config_.columns;
    const ValueId room = b_.alloc(type, int64_t{of_product} * config_.key_boxes);
    const bool interleaves =
        !has_codes() && most_queries_ == 1 && FlashDecodeConfig::kBankRows % group_ == 0;
    const int rows = most_queries_ == 1 && !token_ && !interleaves ? kRows : group_;  // all at once
    if (rows < kRows) {
      b_.store({{room, b_.index(0)}, b_.constant(type, 0, {config_.key_boxes, of_product})});
    }
    meeting_.for_queries([&](ValueId query) {
      for (int i = 0; i < config_.key_boxes / config_.codes; ++i) {
        const int64_t first = int64_t{i} * box_columns();
        const Tile codes = query_codes(query, first, rows);
        if (token_) new_queries_.push_back(codes);
        if (interleaves) {
          const ValueId pitch = b_.index(2 * FlashDecodeConfig::kBankRows);
          b_.store({{room, b_.index(int64_t{i} * box), {pitch, b_.index(1)}, {}},
                    interleaved_queries(b_, codes, config_)});
          continue;
        }
        const ValueId row = b_.mul(query, b_.index(int64_t{group_} * box_columns()));
        b_.store({{room, b_.add(b_.index(int64_t{i} * box), row)},
                  codes_ ? codes_->scaled_queries(codes, first) : codes});
      }
    });
    for (int i = 0; i < config_.key_boxes; ++i) {
      const int64_t first = int64_t{i / config_.codes} * box + i % config_.codes;
      const Tile repeated =
          b_.load({room, b_.index(first), {b_.index(0), b_.index(config_.codes)}, {}},
                  {config_.warps, of_product});
      queries_.push_back(interleaves ? rows_of_queries(b_, repeated, config_)
                                     : b_.reshape(repeated, {all_rows(), config_.columns}));
    }
  }

  Tile query_codes(ValueId query, int64_t first, int rows) {
    if (token_) return token_->queries(rows, first, box_columns());
    return b_.load({q_,
                    place(query_strides_, query, first),
                    {dim(query_strides_.head), dim(query_strides_.column)},
                    {b_.index(group_), b_.index(problem_.depth - first)}},
                   {rows, box_columns()});
  }

  // The new token goes into the caches and is a partial result of its own, made by the last CTA: it
  // has no keys where there is room for one more, else those that are left.
  struct TokenPartial {
    std::vector<Tile> keys;                                   // by box, as the cache has them
    Tile value = kNone, score = kNone, accumulators = kNone;  // the value as the cache has it
  };
  ValueId is_last_cta() { return b_.equal(split_, b_.sub({dim(ctas_), b_.index(1)})); }

  TokenPartial attend_token() {
    std::vector<codegen::Type> types;
    const auto attend = [&] {
      TokenPartial partial;
      Tile products = f32(0, {group_});
      for (int i = 0; i < config_.key_boxes / config_.codes; ++i) {
        const Tile left =
            dequantize_tile(b_, new_queries_[static_cast<size_t>(i)], dtype(attention_.q));
        const Tile right = b_.broadcast(new_key(int64_t{i} * box_columns(), partial.keys),
                                        {group_, box_columns()});
        products = b_.add(products, b_.reduce(Fn::kAdd, b_.mul(left, right), 1));
      }
      const Tile visible = scores_.masked(scores_.scaled(products), task_, kept_);
      std::vector<Tile> all = partial.keys;
      all.push_back(new_value());
      all.push_back(
          b_.select({b_.splat(sees_token_, {group_}), visible, f32(kMinusInfinity, {group_})}));
      all.push_back(new_values());
      for (const Tile tile : all) types.push_back(b_.type(tile));
      return all;
    };
    const auto nothing = [&] {
      std::vector<Tile> zeros;
      for (const codegen::Type& type : types) {
        zeros.push_back(is_floating(type.dtype) ? b_.constant(type.dtype, 0, type.shape)
                                                : b_.integer_constant(type.dtype, 0, type.shape));
      }
      return zeros;
    };
    std::vector<Tile> all = b_.branch(is_last_cta(), attend, nothing);
    TokenPartial partial;
    for (Tile* last : {&partial.accumulators, &partial.score, &partial.value}) {
      *last = all.back();
      all.pop_back();
    }
    partial.keys = std::move(all);
    return partial;
  }

  void store_token(const TokenPartial& added) {
    b_.branch(is_last_cta(), [&] {
      for (size_t i = 0; i < added.keys.size(); ++i) {
        token_->store_key(problem_.cache_width(static_cast<int64_t>(i) * box_columns()),
                          added.keys[i]);
      }
      token_->store_value(0, added.value);
      return std::vector<ValueId>{};
    });
  }

  void store_partial(const TokenPartial& added) {
    b_.branch(is_last_cta(), [&] {
      const ValueId ctas = dim(ctas_);
      meeting_.store(ctas, added.score, f32(1, {group_}), added.accumulators);
      return std::vector<ValueId>{};
    });
  }

  // Columns of the token's key as what its cache says of them: f32; `stored`: as they lie there.
  Tile new_key(int64_t first, std::vector<Tile>& stored) {
    const Tile key = token_->key(first, box_columns());
    const Tile numbers = dequantize_tile(b_, key, dtype(attention_.k));
    if (!codes_) {
      stored.push_back(key);
      return numbers;
    }
    const Tile codes = codes_->key_codes(numbers, first);
    stored.push_back(codes_->as_stored(codes));
    return b_.mul({codes_->as_numbers(codes), codes_->key_scales(b_.type(codes).shape, first)});
  }

  Tile new_value() {
    const Tile value = token_->value(1, value_columns());
    if (!codes_) return value;
    return codes_->as_stored(
        codes_->value_codes(dequantize_tile(b_, value, dtype(attention_.v)), 0));
  }

  // The token's value for every row, as accumulators have it: f32.
  Tile new_values() {
    if (!codes_)
      return dequantize_tile(b_, token_->value(group_, value_columns()), dtype(attention_.v));
    const Tile column = codes_->column({group_, value_columns()});
    return codes_->rounded_values(
        dequantize_tile(b_, token_->value_at(column), dtype(attention_.v)), column);
  }

  // Maximum, sum and outputs of every row of every warp.
  std::vector<Tile> walk_keys() {
    const ValueId visible = b_.sub(task_.last_key, task_.first_key);
    const ValueId steps =
        b_.div({b_.add(visible, b_.index(config_.keys() - 1)), b_.index(config_.keys())});
    const ValueId most = b_.sub({b_.add(steps, dim(split_kv_)), b_.index(1)});
    const ValueId each = b_.div(most, dim(split_kv_));
    const ValueId first = b_.min(steps, b_.mul(split_, each));
    const ValueId last = b_.min(steps, b_.add(first, each));
    std::vector<ValueId> carried = {f32(kMinusInfinity, {all_rows()}), f32(0, {all_rows()})};
    for (int i = 0; i < config_.value_boxes; ++i)
      carried.push_back(f32(0, {all_rows(), config_.columns}));
    return b_.pipeline(
        config_.stages, first, last, carried,
        [&](ValueId step, ValueId stage) { fetch(step, stage); },
        [&](ValueId step, ValueId stage, std::span<const ValueId> before) {
          return visit_keys(step, stage, before);
        });
  }

  ValueId first_key(ValueId step) {
    return b_.add(task_.first_key, b_.mul(step, b_.index(config_.keys())));
  }

  void fetch(ValueId step, ValueId stage) {
    const auto fetch_head = [&](const HeadMatrix& from, const std::vector<ValueId>& rings) {
      const ValueId row = b_.add({from.row(writer_, task_.batch, task_.kv_head), first_key(step)});
      const ValueId column = from.column(writer_, task_.kv_head);
      for (size_t i = 0; i < rings.size(); ++i) {
        const auto first = static_cast<int64_t>(i) * stage_shape()[1];
        const Builder::Matrix matrix = from.matrix(writer_);
        b_.tma_load(rings[i], stage, matrix, row, b_.add(column, b_.index(first)));
      }
    };
    fetch_head(keys_, key_rings_);
    fetch_head(values_, value_rings_);
  }

  std::vector<ValueId> visit_keys(ValueId step, ValueId stage, std::span<const ValueId> before) {
    const ValueId key = first_key(step), left = b_.sub(task_.last_key, key);
    Tile products = f32(0, {all_rows(), config_.warp_keys});
    for (size_t i = 0; i < queries_.size(); ++i) {
      const Tile keys = b_.transpose(keys_of(stage, static_cast<int>(i)));
      products = b_.grouped_dot(products, queries_[i], keys, config_.warps);
    }
    read_words_.clear();
    const ValueId factor = codes_ ? codes_->factor() : kNone;
    const Tile scores = scores_.visible(products, task_, key, left, factor);
    const Tile highest = b_.max(before[0], b_.reduce(Fn::kMax, scores, 1));
    const Tile base = base_of(b_, highest);
    const Tile correction = exp2(b_.sub(before[0], base));
    const Tile p = exp2(b_.sub(scores, spread(b_, base, config_.warp_keys)));
    const Tile total = b_.fma(before[1], correction, b_.reduce(Fn::kAdd, p, 1));

    std::vector<ValueId> after = {highest, total};
    const Tile weights = b_.cast(p, dtype(attention_.v));
    for (size_t i = 2; i < before.size(); ++i) {
      const Tile rescaled = b_.mul(before[i], spread(b_, correction, config_.columns));
      const Tile values = values_of(stage, static_cast<int>(i) - 2, left);
      after.push_back(b_.grouped_dot(rescaled, weights, values, config_.warps));
    }
    read_words_.clear();
    return after;
  }

  // What product `box` takes of a stage.
  Tile keys_of(ValueId stage, int box) {
    const ValueId ring = key_rings_[static_cast<size_t>(box / config_.codes)];
    if (!codes_) return b_.read(ring, stage, stage_shape());
    return codes_->keys(words_of(ring, stage, kNone), box % config_.codes);
  }
  Tile values_of(ValueId stage, int box, ValueId left) {
    const ValueId ring = value_rings_[static_cast<size_t>(box / config_.codes)];
    // Past the last key anything may lie.
    if (!codes_) return b_.read(ring, stage, stage_shape(), kNone, {}, left);
    // A read that ends comes when it is due, not a step ahead: long stages leave no registers for
    // it.
    const bool ends = codes_->may_be_nan() || config_.warp_keys > FlashDecodeConfig::kRows;
    const ValueId end = ends ? left : kNone;
    return codes_->values(words_of(ring, stage, end), box % config_.codes);
  }
  // Read once for all products that have some of them.
  Tile words_of(ValueId ring, ValueId stage, ValueId end) {
    const auto [found, fresh] = read_words_.try_emplace(ring, kNone);
    if (fresh) found->second = b_.read(ring, stage, stage_shape(), kNone, {}, end);
    return found->second;
  }

  // What the sinks of the heads say for every element: how they count as keys; none: kNone.
  Tile sinks(const std::vector<int>& shape) {
    if (sinks_ == kNone) return kNone;
    const Tile loaded = b_.load({sinks_, task_.head, {b_.index(1), b_.index(0)}, {}}, shape);
    return b_.mul({dequantize_tile(b_, loaded, dtype(attention_.sinks)), f32(kLog2E, shape)});
  }

  void store_result(ValueId query) {
    const std::vector<int> shape = {group_, value_columns()};
    const auto [total, accumulators] = meeting_.merged(query, sinks(shape));
    const Tile nothing = rows_of_nothing(writer_, problem_, total);
    const Tile factor = b_.select({nothing, f32(0, shape), b_.div(f32(1, shape), total)});
    if (codes_) {
      const ValueId to = place(problem_.y, query, 0);
      return codes_->store_result(y_, to, b_.mul(accumulators, factor), dtype(node_.outputs[0]));
    }
    b_.store({{y_,
               place(problem_.y, query, 0),
               {dim(problem_.y.head), dim(problem_.y.column)},
               {kNone, b_.index(problem_.value_depth)}},
              quantize_tile(b_, b_.mul(accumulators, factor), dtype(node_.outputs[0]))});
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const FlashDecodeConfig config_;
  const int group_, most_queries_;
  const HeadStrides query_strides_;
  const Dim split_kv_, ctas_, partials_;  // of the keys of a head, that it has, that are merged
  LaunchWriter writer_;
  Builder& b_;
  ValueId q_;
  HeadMatrix keys_, values_;
  FlashDecodeScores scores_;
  ValueId lengths_, sinks_;
  FlashDecodePartials meeting_;
  ValueId counters_, y_;
  ValueId split_ = kNone, head_number_ = kNone;
  AttentionTask task_{};  // of the first head of the group
  std::optional<NewToken> token_;
  std::optional<FlashDecodeCodes> codes_;
  std::map<ValueId, Tile> read_words_;  // of this step's stages
  ValueId kept_ = kNone;                // rows of past before the new token's
  ValueId sees_token_ = kNone;
  std::vector<ValueId> key_rings_, value_rings_;
  std::vector<Tile> queries_, new_queries_;
};

}  // namespace

Launch flash_decode_launch(const ir::Graph& graph, const ir::Node& node,
                           const AttentionProblem& problem, const AttentionOperands& operands,
                           const FlashDecodeConfig& config, int sm_count, bool adds_token,
                           const Dim& wanted, Lowered& lowered) {
  return FlashDecode(graph, node, problem, operands, config, sm_count, adds_token, lowered)
      .emit(wanted);
}

}  // namespace tenon::kernels
