#include "kernels/llvm/loop/emitter.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "kernels/llvm/loop/elements.h"
#include "kernels/llvm/loop/places.h"
#include "kernels/llvm/loop/reducers.h"
#include "kernels/llvm/loop/schedule.h"
#include "kernels/llvm/loop/values.h"
#include "kernels/llvm/pointwise.h"

namespace tenon::kernels {
namespace {

using codegen::kNone;

bool is_plain(const tiling::Access& access) {
  return access.offset.is(0) && access.blocks.empty() && access.gathers.empty() &&
         access.guards.empty();
}

bool reads_as_index(const LoopProblem& problem, ir::ValueId value) {
  const auto is_it = [&](const tiling::GatherTerm& term) { return term.indices == value; };
  return std::ranges::any_of(problem.loads, [&](const tiling::Access& load) {
    return std::ranges::any_of(load.gathers, is_it) ||
           std::ranges::any_of(load.guards,
                               [&](const tiling::Guard& guard) { return guard.fill == value; });
  });
}

// Operands that a loop of one result reads nowhere but where it writes. What is written follows
// from what was read there and, behind reductions, from all that they read: so no tile and no
// thread can write too soon. With more results one might be written before another's operand is
// read, and a result that keeps numbers of an earlier stage is written before the last.
std::vector<InPlace> buffers_in_place(const LoopProblem& problem, const LoopSchedule& schedule) {
  if (problem.stores.size() != 1 || problem.ordered_axis >= 0) return {};
  const LoopStore& store = problem.stores[0];
  const int bits = bit_width(problem.body->value(store.value).dtype);
  const auto is_in_output = [](const auto& stash) { return stash.second.store >= 0; };
  const auto is_reduced = [&](int axis) {
    return store.place.strides[axis].is(0) && !problem.domain[axis].is(1);
  };
  if (!is_plain(store.place) || bits < 8 || store.buffer.kind != BufferArgument::Kind::kValue ||
      std::ranges::any_of(schedule.stashes, is_in_output) ||
      std::ranges::any_of(problem.reduced_axes, is_reduced)) {
    return {};
  }
  std::vector<InPlace> in_place;
  for (const auto& [value, buffer] : problem.buffers) {
    const auto reads_elsewhere = [&, id = value](const tiling::Access& load) {
      return load.input == id && !(is_plain(load) && load.strides == store.place.strides);
    };
    if (buffer.kind != BufferArgument::Kind::kValue || reads_as_index(problem, value) ||
        bit_width(problem.body->value(value).dtype) != bits ||
        std::ranges::any_of(problem.loads, reads_elsewhere)) {
      continue;
    }
    in_place.push_back({buffer.id, store.buffer.id});
  }
  return in_place;
}

}  // namespace

class LoopEmitter {
 public:
  LoopEmitter(LaunchWriter& writer, const LoopProblem& problem, LoopSchedule schedule)
      : problem_(problem),
        body_(*problem.body),
        schedule_(std::move(schedule)),
        writer_(writer),
        b_(writer_.builder),
        places_(writer_, problem_, schedule_),
        elements_(writer_, problem_, schedule_, places_),
        values_(writer_, problem_, schedule_, places_, elements_) {}

  Launch run() {
    elements_.declare_buffers();
    declare_parameters();
    values_.allocate_stashes();
    values_.in_scope([&] { emit_task(); });
    Launch launch = writer_.finish(schedule_.tasks, schedule_.task_cost);
    launch.checks = problem_.checks;
    launch.threads = schedule_.threads;
    launch.in_place = buffers_in_place(problem_, schedule_);
    return launch;
  }

  void declare_row() {
    elements_.declare_inputs();
    declare_parameters();
  }

  // What the rows share is read first: nobody has to wait for it.
  Tile row(Tile number) {
    return values_.in_scope([&] {
      return at_whole_row([&] {
        for (const tiling::Access& load : problem_.loads) {
          const bool shared = (axes_of(load) & kept_axes()) == 0 && load.guards.empty();
          if (shared && !problem_.is_baked(load.input)) values_.codes(load.value);
        }
        open_row(number);
        values_.hoist();
        for (size_t stage = 0; stage < schedule_.stages.size(); ++stage) reduce_stage(stage);
        values_.enter_stage(schedule_.stages.size());
        const Tile codes = values_.codes(problem_.stores[0].value);
        if (schedule_.row_axis >= 0) places_.close(schedule_.row_axis);
        for (const int axis : schedule_.outer_axes) places_.close(axis);
        return codes;
      });
    });
  }

 private:
  using Carried = std::vector<Tile>;
  using TileBody = std::function<Carried(std::span<const Tile>)>;

  // All kept axes from one number, the last axis fastest.
  void open_row(Tile number) {
    std::vector<int> axes = schedule_.outer_axes;
    if (schedule_.row_axis >= 0) axes.push_back(schedule_.row_axis);
    for (size_t i = axes.size(); i-- > 0;) {
      if (i == 0) {
        places_.open(axes[i], number);
      } else {
        const Tile size = writer_.index(problem_.domain[axes[i]]);
        places_.open(axes[i], b_.rem(number, size));
        number = b_.div(number, size);
      }
    }
  }

  void declare_parameters() {
    places_.declare_sizes();
    for (const Dim& dim : {schedule_.vector_size, schedule_.vector_chunk, schedule_.row_chunk,
                           schedule_.vector_chunks, schedule_.row_chunks, reduced_count()}) {
      writer_.declare(dim);
    }
    for (ir::NodeId id : problem_.region) {
      const ir::Node& node = body_.node(id);
      if (node.is("tenon::DimValue")) writer_.declare(Dim::parse(node.text("dim", "0")));
    }
  }

  // What means divide by: that of nothing is 0.
  Dim reduced_count() const {
    Dim count = 1;
    for (int axis : problem_.reduced_axes) count = count * problem_.domain[axis];
    return max(count, 1);
  }

  bool vector_is_reduced() const {
    return schedule_.vector_axis >= 0 && problem_.is_reduced(schedule_.vector_axis);
  }

  void emit_task() {
    Tile rest = b_.task();
    const auto take = [&](const Dim& count) {
      if (count.is(1)) return b_.index(0);
      const Tile chosen = b_.rem(rest, writer_.index(count));
      rest = b_.div(rest, writer_.index(count));
      return chosen;
    };
    const Tile vector_chunk = take(schedule_.vector_chunks);
    const Tile row_chunk = take(schedule_.row_chunks);
    for (size_t i = schedule_.outer_axes.size(); i-- > 0;) {
      const int axis = schedule_.outer_axes[i];
      if (i == 0) {
        places_.open(axis, rest);
      } else {
        places_.open(axis, take(problem_.domain[axis]));
      }
    }
    values_.hoist();
    emit_rows(row_chunk, vector_chunk);
  }

  // [chunk * size, min((chunk + 1) * size, total))
  std::pair<Tile, Tile> range(Tile chunk, const Dim& size, const Dim& chunks, const Dim& total) {
    if (chunks.is(1)) return {b_.index(0), writer_.index(total)};
    const Tile first = b_.mul(chunk, writer_.index(size));
    return {first, b_.min({b_.add(first, writer_.index(size)), writer_.index(total)})};
  }

  void emit_rows(Tile row_chunk, Tile vector_chunk) {
    if (schedule_.row_axis < 0) return emit_row(vector_chunk);
    const auto [first, last] = range(row_chunk, schedule_.row_chunk, schedule_.row_chunks,
                                     problem_.domain[schedule_.row_axis]);
    if (schedule_.tile_rows > 1) return emit_squares(first, last, vector_chunk);
    loop_over(schedule_.row_axis, first, last, {}, [&](std::span<const Tile>) {
      emit_row(vector_chunk);
      return Carried{};
    });
  }

  // Whole squares where both sides have enough left, squares with extents elsewhere: two copies of
  // the code instead of four.
  void emit_squares(Tile first, Tile last, Tile vector_chunk) {
    const auto [from, to] =
        range(vector_chunk, schedule_.vector_chunk, schedule_.vector_chunks, schedule_.vector_size);
    const Tile rows = b_.index(schedule_.tile_rows);
    const TileBody square = [&](std::span<const Tile>) {
      emit_stages();
      return Carried{};
    };
    b_.loop(first, last, rows, {}, [&, from = from, to = to](Tile row, std::span<const Tile>) {
      return values_.in_scope([&] {
        places_.open(schedule_.row_axis, row);
        const Tile whole_end = b_.sub(to, b_.rem({b_.sub(to, from), b_.index(schedule_.lanes)}));
        const Tile rows_left = b_.sub(last, row);
        const auto whole_squares = [&] {
          full_tiles(from, whole_end, {}, square);
          return Carried{whole_end};
        };
        const auto none = [&] { return Carried{from}; };
        const Tile done = b_.branch(b_.less(rows_left, rows), none, whole_squares)[0];
        places_.set_row_extent(rows_left);
        b_.loop(done, to, b_.index(schedule_.lanes), {}, [&](Tile at, std::span<const Tile> now) {
          return at_tile(at, b_.sub(to, at), now, square);
        });
        places_.set_row_extent(kNone);
        places_.close(schedule_.row_axis);
        return Carried{};
      });
    });
  }

  void emit_row(Tile vector_chunk) {
    const bool kept = schedule_.flat || (schedule_.vector_axis >= 0 && !vector_is_reduced());
    if (!kept) return emit_stages();
    const auto [first, last] =
        range(vector_chunk, schedule_.vector_chunk, schedule_.vector_chunks, schedule_.vector_size);
    tiles_over(first, last, {}, [&](std::span<const Tile>) {
      emit_stages();
      return Carried{};
    });
  }

  void emit_stages() {
    if (!schedule_.whole_row) return emit_every_stage();
    at_whole_row([&] {
      emit_every_stage();
      return kNone;
    });
  }

  Tile at_whole_row(const std::function<Tile()>& inside) {
    const Tile extent =
        schedule_.vector_size.is(schedule_.lanes) ? kNone : writer_.index(schedule_.vector_size);
    return at_tile(b_.index(0), extent, {},
                   [&](std::span<const Tile>) { return Carried{inside()}; })[0];
  }

  AxisSet kept_axes() const {
    AxisSet kept = (AxisSet{1} << problem_.domain.size()) - 1;
    for (int axis : problem_.reduced_axes) kept &= ~(AxisSet{1} << axis);
    return kept;
  }

  void emit_every_stage() {
    for (size_t stage = 0; stage < schedule_.stages.size(); ++stage) reduce_stage(stage);
    values_.enter_stage(schedule_.stages.size());
    AxisSet reduced = 0;
    for (int axis : problem_.reduced_axes) reduced |= AxisSet{1} << axis;
    std::vector<size_t> whole;
    for (size_t i = 0; i < problem_.stores.size(); ++i) {
      if (axes_of(problem_.stores[i].place) & reduced) {
        whole.push_back(i);
      } else {
        store_reduced(i);
      }
    }
    if (whole.empty()) return;
    over_reduced_axes(0, {}, [&](std::span<const Tile>) {
      // All are read before any is written: an output may hold a stashed value.
      std::vector<Tile> results;
      for (size_t i : whole) results.push_back(values_.codes(problem_.stores[i].value));
      for (size_t i = 0; i < whole.size(); ++i) elements_.store(whole[i], results[i]);
      return Carried{};
    });
  }

  // A result may still vary with the lanes of a reduced axis: one of size 1, whose number a
  // Position or a guard asks for. Only the first lane is an element then.
  void store_reduced(size_t index) {
    const ir::ValueId value = problem_.stores[index].value;
    const bool in_lanes = vector_is_reduced() && values_.depends_on_lanes(value);
    if (!in_lanes || schedule_.whole_row) return elements_.store(index, values_.codes(value));
    const Tile first = b_.index(0), end = b_.index(1);
    at_tile(first, end, {}, [&](std::span<const Tile>) {
      elements_.store(index, values_.codes(value));
      return Carried{};
    });
  }

  void reduce_stage(size_t stage) {
    values_.enter_stage(stage);
    std::vector<Reducer> reducers;
    Carried initial;
    for (ir::NodeId id : schedule_.stages[stage]) {
      const ir::Node& node = body_.node(id);
      const bool lanes = vector_is_reduced() || values_.depends_on_lanes(node.input(0));
      reducers.push_back({b_, node, compute_type(body_.value(node.input(0)).dtype),
                          lanes ? schedule_.tile_shape() : std::vector<int>{},
                          writer_.index(reduced_count())});
      for (Tile tile : reducers.back().start()) initial.push_back(tile);
    }
    const Carried totals = over_reduced_axes(0, initial, [&](std::span<const Tile> carried) {
      Carried next;
      size_t at = 0;
      for (const Reducer& reducer : reducers) {
        const Accumulator so_far(carried.begin() + at, carried.begin() + at + reducer.width());
        at += reducer.width();
        const Tile operand = values_.number(reducer.node.input(0));
        const Tile mask = vector_is_reduced() ? places_.lane_mask() : kNone;
        for (Tile tile : reducer.take(so_far, operand, reduced_position(reducer.node), mask)) {
          next.push_back(tile);
        }
      }
      values_.keep_stashes();
      return next;
    });
    size_t at = 0;
    for (const Reducer& reducer : reducers) {
      const Accumulator total(totals.begin() + at, totals.begin() + at + reducer.width());
      at += reducer.width();
      values_.remember(reducer.node.output(0), reducer.finish(total, vector_is_reduced()));
    }
    values_.hoist();
  }

  Tile reduced_position(const ir::Node& node) {
    if (!needs_position(node)) return kNone;
    if (problem_.reduced_axes.empty()) return b_.integer_constant(DType::kI64, 0);
    return places_.position(problem_.reduced_axes.front());
  }

  Carried over_reduced_axes(size_t depth, const Carried& carried, const TileBody& inside) {
    // What a whole row computes stays true from stage to stage.
    if (schedule_.whole_row) return inside(carried);
    if (depth == schedule_.reduced_axes.size()) {
      return values_.in_scope([&] { return inside(carried); });
    }
    const int axis = schedule_.reduced_axes[depth];
    const Tile size = writer_.index(problem_.domain[axis]);
    const auto deeper = [&](std::span<const Tile> now) {
      return over_reduced_axes(depth + 1, Carried(now.begin(), now.end()), inside);
    };
    if (schedule_.is_vector(axis)) return tiles_over(b_.index(0), size, carried, deeper);
    const bool innermost = depth + 1 == schedule_.reduced_axes.size();
    if (!innermost || schedule_.unroll == 1) {
      return loop_over(axis, b_.index(0), size, carried, deeper);
    }
    return unrolled_loop_over(axis, size, carried, deeper);
  }

  Carried loop_over(int axis, Tile first, Tile last, const Carried& carried,
                    const TileBody& inside) {
    return b_.loop(first, last, b_.index(1), carried, [&](Tile counter, std::span<const Tile> now) {
      return at_step(axis, counter, now, inside);
    });
  }

  // Loads of several steps are in flight together.
  Carried unrolled_loop_over(int axis, Tile size, const Carried& carried, const TileBody& inside) {
    const Tile step = b_.index(schedule_.unroll);
    const Tile whole = b_.sub(size, b_.rem(size, step));
    const Carried most =
        b_.loop(b_.index(0), whole, step, carried, [&](Tile counter, std::span<const Tile> now) {
          Carried next(now.begin(), now.end());
          for (int i = 0; i < schedule_.unroll; ++i) {
            next = at_step(axis, b_.add(counter, b_.index(i)), next, inside);
          }
          return next;
        });
    return loop_over(axis, whole, size, most, inside);
  }

  Carried at_step(int axis, Tile coordinate, std::span<const Tile> carried,
                  const TileBody& inside) {
    return values_.in_scope([&] {
      places_.open(axis, coordinate);
      values_.hoist();
      Carried next = inside(carried);
      places_.close(axis);
      return next;
    });
  }

  // Whole tiles in a loop, then one with an extent for what is left.
  Carried tiles_over(Tile first, Tile last, Carried carried, const TileBody& inside) {
    const Dim& size = schedule_.vector_size;
    const bool no_rest = mod(size, Dim(schedule_.lanes)).is(0) || schedule_.lanes == 1;
    const bool only_rest = size.is_constant() && size.value() < schedule_.lanes;
    const Tile step = b_.index(schedule_.lanes);
    if (no_rest) return full_tiles(first, last, carried, inside);
    if (only_rest) return one_tile(first, last, carried, inside);
    const Tile length = b_.sub(last, first);
    const Tile whole_end = b_.sub(last, b_.rem(length, step));
    carried = full_tiles(first, whole_end, carried, inside);
    return b_.branch(
        b_.less(whole_end, last), [&] { return one_tile(whole_end, last, carried, inside); },
        [&] { return carried; });
  }

  Carried full_tiles(Tile first, Tile last, const Carried& carried, const TileBody& inside) {
    return b_.loop(first, last, b_.index(schedule_.lanes), carried,
                   [&](Tile counter, std::span<const Tile> now) {
                     return at_tile(counter, kNone, now, inside);
                   });
  }

  Carried one_tile(Tile first, Tile last, const Carried& carried, const TileBody& inside) {
    return at_tile(first, b_.sub(last, first), carried, inside);
  }

  Carried at_tile(Tile first, Tile extent, std::span<const Tile> carried, const TileBody& inside) {
    return values_.in_scope([&] {
      places_.set_extent(extent);
      if (schedule_.flat) {
        places_.open_flat(first);
      } else {
        places_.open(schedule_.vector_axis, first);
      }
      if (!schedule_.reduced_axes.empty() && !vector_is_reduced()) values_.hoist();
      Carried next = inside(carried);
      if (schedule_.flat) {
        places_.close_flat();
      } else {
        places_.close(schedule_.vector_axis);
      }
      places_.set_extent(kNone);
      return next;
    });
  }

  const LoopProblem& problem_;
  const ir::Graph& body_;
  const LoopSchedule schedule_;
  LaunchWriter& writer_;
  codegen::Builder& b_;
  Places places_;
  Elements elements_;
  Values values_;
};

namespace {

Support supports_stores(const LoopProblem& problem, const LoopSchedule& schedule) {
  for (const LoopStore& store : problem.stores) {
    const DType dtype = problem.body->value(store.value).dtype;
    if (!is_packed(dtype) || problem.domain.empty()) continue;
    const bool whole = schedule.flat ? store.place.strides == contiguous_strides(problem.domain) &&
                                           store.place.offset.is(0) && store.place.gathers.empty()
                                     : is_byte_aligned(store.place, schedule.vector_axis, dtype);
    if (!whole) {
      return Support::no(
          fmt::format("rows of the {} output do not begin at whole bytes", name(dtype)));
    }
  }
  return Support::yes();
}

}  // namespace

Support supports_problem(const LoopProblem& problem, const Settings& settings) {
  if (problem.domain.size() > 60) return Support::no("more than 60 axes");
  for (const tiling::Access& load : problem.loads) {
    if (Support answer = supports_type(problem.body->value(load.value).dtype); !answer)
      return answer;
  }
  for (ir::NodeId id : problem.region) {
    const ir::Node& node = problem.body->node(id);
    const Support answer = is_reduction(node) ? supports_reduction(*problem.body, node)
                                              : supports_pointwise(*problem.body, node);
    if (!answer) return answer;
  }
  return supports_stores(problem, make_schedule(problem, settings));
}

Launch emit_loop(const LoopProblem& problem, const Settings& settings) {
  LaunchWriter writer(problem.name);
  return LoopEmitter(writer, problem, make_schedule(problem, settings)).run();
}

Support LoopRow::supports(const LoopProblem& problem, const Settings& settings) {
  const LoopSchedule schedule = make_schedule(problem, settings);
  if (!schedule.whole_row) return Support::no("a row of the loop does not fit one CTA");
  std::vector<int> kept = schedule.outer_axes;
  if (schedule.row_axis >= 0) kept.push_back(schedule.row_axis);
  if (!std::ranges::is_sorted(kept)) return Support::no("the loop walks its rows in another order");
  if (problem.stores.size() != 1 ||
      !(axes_of(problem.stores[0].place) >> schedule.vector_axis & 1)) {
    return Support::no("the loop's output is not one matrix of rows");
  }
  if (!problem.checks.empty()) return Support::no("the loop gathers");
  return Support::yes();
}

LoopRow::LoopRow(LaunchWriter& writer, LoopProblem problem, const Settings& settings)
    : problem_(std::make_unique<const LoopProblem>(std::move(problem))),
      emitter_(
          std::make_unique<LoopEmitter>(writer, *problem_, make_schedule(*problem_, settings))) {
  emitter_->declare_row();
}

LoopRow::LoopRow(LoopRow&&) noexcept = default;
LoopRow::~LoopRow() = default;

Tile LoopRow::emit(Tile row) { return emitter_->row(row); }

}  // namespace tenon::kernels
