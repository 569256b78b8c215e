#include "kernels/llvm/attention/paged.h"

#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "graph_partitioner/ir/paged_attention.h"
#include "kernels/llvm/attention/cache_codes.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/movement.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int kKeys = 16;  // that are seen at once; all of one page

struct Problem {
  ir::PagedAttention attention;
  Dim tokens, sequences, pages, pages_of_sequence;
  int64_t page = 0, q_heads = 0, kv_heads = 0, depth = 0;
  float scale = 1;

  int64_t row() const { return kv_heads * depth; }
};

struct Described {
  Support support;
  Problem problem;
};

Described describe(const ir::Graph& graph, const ir::Node& node) {
  Described result;
  Problem& p = result.problem;
  p.attention = ir::PagedAttention::from(node);
  const auto shape = [&](ir::ValueId id) {
    return graph.value(id).shape ? *graph.value(id).shape : Shape{};
  };
  const Shape q = shape(p.attention.q), cache = shape(p.attention.key_cache),
              table = shape(p.attention.table);
  const auto refuse = [&](std::string why) {
    result.support = Support::no(std::move(why));
    return result;
  };
  if (q.size() != 3 || cache.size() != 4 || table.size() != 2 || !q[1].is_constant() ||
      !cache[1].is_constant() || !cache[2].is_constant() || !cache[3].is_constant()) {
    return refuse("page or head sizes are not static");
  }
  p.tokens = q[0];
  p.sequences = table[0];
  p.pages_of_sequence = table[1];
  p.pages = cache[0];
  p.page = cache[1].value();
  p.kv_heads = cache[2].value();
  p.depth = cache[3].value();
  p.q_heads = q[1].value();
  if (p.page % kKeys != 0)
    return refuse(fmt::format("a page of {} tokens is not a multiple of {}", p.page, kKeys));
  const DType own = graph.value(p.attention.q).dtype;
  for (const ir::ValueId id : {p.attention.q, p.attention.k, p.attention.v, node.outputs[0]}) {
    const DType type = graph.value(id).dtype;
    if (type != own || compute_type(type) != DType::kF32) {
      return refuse(fmt::format("operands of type {} are not supported", name(type)));
    }
  }
  const bool has_codes = p.attention.has_codes();
  for (const ir::ValueId id : {p.attention.key_cache, p.attention.value_cache}) {
    const DType type = graph.value(id).dtype;
    const bool is_code = type == DType::kI8 || type == DType::kF8E4M3FN;
    if (has_codes ? !is_code : type != own)
      return refuse(fmt::format("a paged KV cache of {} is not supported", name(type)));
  }
  for (const ir::ValueId id : {p.attention.k_scale, p.attention.v_scale}) {
    if (!has_codes) break;
    const Dim count = id == ir::kNoValue ? Dim(0) : element_count(shape(id));
    if (!count.is(1) && !count.is(p.row())) {
      return refuse(
          fmt::format("{} KV scales for {} heads of {}", count.text(), p.kv_heads, p.depth));
    }
  }
  p.scale =
      p.attention.scale != 0 ? p.attention.scale : 1.0f / std::sqrt(static_cast<float>(p.depth));
  return result;
}

// What both launches share: where the keys of a token lie.
class Paged {
 public:
  Paged(const char* kernel, const ir::Graph& graph, const ir::Node& node, const Problem& problem,
        const Settings& settings)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        columns_(settings.gpu ? 128 : 16),
        writer_(kernel),
        b_(writer_.builder),
        rows_(buffer("rows", attention_.rows)),
        positions_(buffer("positions", attention_.positions)),
        table_(buffer("table", attention_.table)),
        k_scale_(buffer("k_scale", attention_.k_scale)),
        v_scale_(buffer("v_scale", attention_.v_scale)) {
    for (const Dim& dim : {problem.sequences, problem.pages, problem.pages_of_sequence}) {
      writer_.declare(dim);
    }
  }

 protected:
  static constexpr int kThreads = 128;

  ValueId buffer(const char* name, ir::ValueId id) {
    if (id == ir::kNoValue) return kNone;
    return writer_.buffer(name, storage_type(dtype(id)), BufferArgument::value(id));
  }
  DType dtype(ir::ValueId id) const { return graph_.value(id).dtype; }
  ValueId dim(const Dim& value) { return writer_.index(value); }
  ValueId number_at(ValueId buffer, ValueId at) {
    return b_.index_from(b_.load({buffer, at, {}, {}}, {}));
  }
  ValueId within(ValueId index, ValueId count) {
    return b_.max({b_.index(0), b_.min(index, b_.sub(count, b_.index(1)))});
  }

  void locate(ValueId token) {
    const ValueId number = number_at(rows_, token);
    sequence_ = within(number, dim(problem_.sequences));
    position_ = number_at(positions_, token);
    room_ = b_.mul({dim(problem_.pages_of_sequence), b_.index(problem_.page)});
  }
  // The page of key `key`, as the table has it.
  ValueId page_of(ValueId key) {
    const ValueId at = b_.add(
        {b_.mul(sequence_, dim(problem_.pages_of_sequence)), b_.div(key, b_.index(problem_.page))});
    return number_at(table_, at);
  }
  // `slot` counts over all pages.
  ValueId slot_of(ValueId page, ValueId key) {
    return b_.add({b_.mul(page, b_.index(problem_.page)), b_.rem(key, b_.index(problem_.page))});
  }

  // Scales of `shape`, of elements of a slot's row from `column` on.
  Tile scales(ir::ValueId id, ValueId column, ValueId left, std::vector<int> shape) {
    const ValueId from = id == attention_.k_scale ? k_scale_ : v_scale_;
    if (element_count(*graph_.value(id).shape).is(1)) {
      return b_.splat(b_.load({from, b_.index(0), {}, {}}, {}), shape);
    }
    std::vector<ValueId> strides = {b_.index(1)}, extents = {left};
    if (shape.size() == 2) {
      strides.insert(strides.begin(), b_.index(0));
      extents.insert(extents.begin(), kNone);
    }
    return b_.load({from, column, strides, extents}, shape, 1);
  }

  Launch finish(const Dim& tasks, const Dim& cost) {
    Launch launch = writer_.finish(tasks, cost);
    launch.threads = kThreads;
    return launch;
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const Problem& problem_;
  const ir::PagedAttention& attention_;
  const int columns_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId rows_, positions_, table_, k_scale_, v_scale_;
  ValueId sequence_ = kNone, position_ = kNone, room_ = kNone;
};

// A task has one token.
class AppendToPages : Paged {
 public:
  AppendToPages(const ir::Graph& graph, const ir::Node& node, const Problem& problem,
                const Settings& settings)
      : Paged("append_to_pages", graph, node, problem, settings),
        slots_(buffer("slots", attention_.slots)),
        k_(buffer("k", attention_.k)),
        v_(buffer("v", attention_.v)),
        keys_(buffer("keys", node.outputs[1])),
        values_(buffer("values", node.outputs[2])) {}

  Launch emit() {
    locate(b_.task());
    const ValueId slot = slots_ == kNone ? own_slot() : number_at(slots_, b_.task());
    const ValueId all = b_.mul({dim(problem_.pages), b_.index(problem_.page)});
    const ValueId none = b_.index(0);
    ValueId width = b_.select({b_.less(slot, all), b_.index(problem_.row()), none});
    width = b_.select(b_.less(slot, none), none, width);
    const ValueId from = b_.mul({b_.task(), b_.index(problem_.row())});
    const ValueId to = b_.mul(slot, b_.index(problem_.row()));
    b_.loop(none, width, b_.index(columns_), {}, [&](ValueId column, auto) {
      const ValueId left = b_.sub(width, column);
      const auto move = [&](ValueId source, ir::ValueId scale, ValueId target) {
        Tile codes = b_.load({source, b_.add(from, column), {}, {left}}, {columns_});
        if (attention_.has_codes()) codes = coded(codes, scale, column, left);
        b_.store({target, b_.add(to, column), {}, {left}}, codes);
      };
      move(k_, attention_.k_scale, keys_);
      move(v_, attention_.v_scale, values_);
      return Nothing{};
    });
    return finish(problem_.tokens, problem_.row());
  }

 private:
  // -1 where the sequence has no page for it.
  ValueId own_slot() {
    const ValueId inside = within(position_, room_);
    const ValueId slot = slot_of(page_of(inside), inside);
    return b_.select({b_.equal(inside, position_), slot, b_.index(-1)});
  }

  Tile coded(Tile elements, ir::ValueId scale, ValueId column, ValueId left) {
    const Tile numbers = dequantize_tile(b_, elements, dtype(attention_.k));
    const Tile scaled = b_.div(numbers, scales(scale, column, left, {columns_}));
    return to_codes(b_, scaled, dtype(attention_.key_cache));
  }

  ValueId slots_, k_, v_, keys_, values_;
};

// A task has one token and one head of q.
class AttendPages : Paged {
 public:
  AttendPages(const ir::Graph& graph, const ir::Node& node, const Problem& problem,
              const Settings& settings)
      : Paged("paged_attention", graph, node, problem, settings),
        q_(buffer("q", attention_.q)),
        keys_(buffer("keys", node.outputs[1])),
        values_(buffer("values", node.outputs[2])),
        sinks_(buffer("sinks", attention_.sinks)),
        y_(buffer("y", node.outputs[0])) {}

  Launch emit() {
    const ValueId heads = b_.index(problem_.q_heads);
    head_ = b_.rem(b_.task(), heads);
    locate(b_.div(b_.task(), heads));
    const int64_t group = problem_.q_heads / problem_.kv_heads;
    head_at_ = b_.mul({b_.div(head_, b_.index(group)), b_.index(problem_.depth)});
    end_ = b_.max({b_.index(0), b_.min(room_, b_.add(position_, b_.index(1)))});
    first_ = b_.index(0);
    if (attention_.left_window >= 0) {
      first_ = b_.max(first_, b_.sub(position_, b_.index(attention_.left_window)));
    }
    stage();
    store(walk());
    return finish(problem_.tokens * problem_.q_heads,
                  problem_.pages_of_sequence * (problem_.page * problem_.depth / 8));
  }

 private:
  Tile f32(double value, std::vector<int> shape = {}) {
    return b_.constant(DType::kF32, value, std::move(shape));
  }
  void for_columns(const std::function<void(ValueId column, ValueId left)>& body) {
    const ValueId depth = b_.index(problem_.depth);
    b_.loop({b_.index(0), depth, b_.index(columns_)}, {}, [&](ValueId column, auto) {
      body(column, b_.sub(depth, column));
      return Nothing{};
    });
  }

  void stage() {
    query_ = b_.alloc(DType::kF32, problem_.depth);
    accumulators_ = b_.alloc(DType::kF32, problem_.depth);
    const ValueId from = b_.mul({b_.task(), b_.index(problem_.depth)});
    for_columns([&](ValueId column, ValueId left) {
      const Tile codes = b_.load({q_, b_.add(from, column), {}, {left}}, {columns_});
      const Tile scaled = b_.mul(
          {dequantize_tile(b_, codes, dtype(attention_.q)), f32(problem_.scale, {columns_})});
      b_.store({query_, column, {}, {left}}, scaled);
      b_.store({accumulators_, column, {}, {left}}, f32(0, {columns_}));
    });
  }

  // The sum of all weights.
  Tile walk() {
    Tile maximum = f32(kMinusInfinity), total = f32(0);
    if (sinks_ != kNone) {
      maximum = dequantize_tile(b_, b_.load({sinks_, head_, {}, {}}, {}), dtype(attention_.sinks));
      total = f32(1);
    }
    const ValueId keys = b_.index(kKeys);
    const ValueId begin = b_.mul(b_.div(b_.min(first_, end_), keys), keys);
    return b_.loop(begin, end_, keys, {maximum, total},
                   [&](ValueId key, std::span<const ValueId> before) {
                     return visit(key, before[0], before[1]);
                   })[1];
  }

  std::vector<ValueId> visit(ValueId key, Tile maximum, Tile total) {
    const ValueId named = page_of(key), page = within(named, dim(problem_.pages));
    const ValueId at = b_.add(b_.mul({slot_of(page, key), b_.index(problem_.row())}), head_at_);
    const Tile scores = visible(products(at), key);
    const Tile highest = b_.max(maximum, b_.reduce(Fn::kMax, scores, 0));
    // Where nothing was seen yet the maximum is -inf, and -inf - -inf is no number.
    const Tile none = b_.compare(Fn::kEqual, highest, f32(kMinusInfinity));
    const Tile base = b_.select(none, f32(0), highest);
    const Tile correction = b_.unary(Fn::kExp, b_.sub(maximum, base));
    const Tile p = b_.unary(Fn::kExp, b_.sub(scores, b_.splat(base, {kKeys})));
    add_values(at, b_.sub(end_, key), p, correction);
    return {highest, b_.fma(total, correction, b_.reduce(Fn::kAdd, p, 0))};
  }

  Tile rows_of(ValueId cache, ir::ValueId id, ValueId at, ValueId column, ValueId rows_left,
               ValueId left) {
    const Tile codes = b_.load(
        {cache, b_.add(at, column), {b_.index(problem_.row()), b_.index(1)}, {rows_left, left}},
        {kKeys, columns_});
    if (!attention_.has_codes()) return dequantize_tile(b_, codes, dtype(id));
    const ir::ValueId scale = id == attention_.key_cache ? attention_.k_scale : attention_.v_scale;
    return b_.mul({numbers_of(b_, codes, dtype(id)),
                   scales(scale, b_.add(head_at_, column), left, {kKeys, columns_})});
  }

  Tile products(ValueId at) {
    const std::vector<int> shape = {kKeys, columns_};
    const ValueId depth = b_.index(problem_.depth);
    const codegen::Range columns{b_.index(0), depth, b_.index(columns_)};
    const Tile all = b_.loop(columns, {f32(0, shape)}, [&](ValueId column, auto sum) {
      const ValueId left = b_.sub(depth, column);
      const Tile query =
          b_.load({query_, column, {b_.index(0), b_.index(1)}, {kNone, left}}, shape);
      const Tile key = rows_of(keys_, attention_.key_cache, at, column, kNone, left);
      return std::vector<ValueId>{b_.fma(query, key, sum[0])};
    })[0];
    return b_.reduce(Fn::kAdd, all, 1);
  }

  Tile visible(Tile scores, ValueId key) {
    const std::vector<int> shape = {kKeys};
    if (attention_.softcap > 0) {
      const Tile cap = f32(attention_.softcap, shape);
      scores = b_.mul(b_.unary(Fn::kTanh, b_.div(scores, cap)), cap);
    }
    const auto splat = [&](ValueId index) {
      return b_.splat(b_.from_index(index, DType::kI32), shape);
    };
    const Tile place = b_.iota(DType::kI32, shape, 0);
    const Tile before =
        b_.compare(Fn::kLess, place, splat(b_.min({b_.sub(end_, key), b_.index(kKeys)})));
    const Tile after =
        b_.compare(Fn::kGreaterEqual, place, splat(b_.max({b_.index(0), b_.sub(first_, key)})));
    return b_.select({b_.binary(Fn::kAnd, before, after), scores, f32(kMinusInfinity, shape)});
  }

  // Rows behind the last key may hold anything, NaN too.
  void add_values(ValueId at, ValueId rows_left, Tile p, Tile correction) {
    const Tile weights = b_.broadcast(b_.reshape(p, {kKeys, 1}), {kKeys, columns_});
    for_columns([&](ValueId column, ValueId left) {
      const Tile value = rows_of(values_, attention_.value_cache, at, column, rows_left, left);
      const Tile added = b_.reduce(Fn::kAdd, b_.mul(value, weights), 0);
      const codegen::Access accumulators{accumulators_, column, {}, {left}};
      const Tile kept =
          b_.mul({b_.load(accumulators, {columns_}), b_.splat(correction, {columns_})});
      b_.store(accumulators, b_.add(kept, added));
    });
  }

  void store(Tile total) {
    const Tile nothing = b_.compare(Fn::kEqual, total, f32(0));
    const Tile factor = b_.select({nothing, f32(0), b_.div(f32(1), total)});
    const ValueId to = b_.mul({b_.task(), b_.index(problem_.depth)});
    for_columns([&](ValueId column, ValueId left) {
      const Tile accumulators = b_.load({accumulators_, column, {}, {left}}, {columns_});
      const Tile result = b_.mul(accumulators, b_.splat(factor, {columns_}));
      b_.store({{y_, b_.add(to, column), {}, {left}},
                quantize_tile(b_, result, dtype(node_.outputs[0]))});
    });
  }

  ValueId q_, keys_, values_, sinks_, y_;
  ValueId head_ = kNone, head_at_ = kNone, first_ = kNone, end_ = kNone;
  ValueId query_ = kNone, accumulators_ = kNone;  // scratch
};

Lowered lower_pages(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                    const Problem& problem) {
  Lowered lowered;
  const std::array caches = {problem.attention.key_cache, problem.attention.value_cache};
  for (size_t i = 0; i < caches.size(); ++i) {
    Launch copy = emit_loop(copy_problem(graph, caches[i], node.outputs[1 + i]), settings);
    copy.elidable_copy = ElidableCopy{caches[i], node.outputs[1 + i]};
    lowered.launches.push_back(std::move(copy));
  }
  lowered.launches.push_back(AppendToPages(graph, node, problem, settings).emit());
  lowered.launches.push_back(AttendPages(graph, node, problem, settings).emit());
  return lowered;
}

Planned plan_pages(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const auto described = describe(graph, node);
  if (!described.support) return described.support;
  return Plan::of({Skeleton::kPagedAttention},
                  [&graph, &node, &settings, problem = described.problem] {
                    return lower_pages(graph, node, settings, problem);
                  });
}

}  // namespace

std::span<const Candidate> paged_attention_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"pages", plan_pages}}};
  return table;
}

}  // namespace tenon::kernels
