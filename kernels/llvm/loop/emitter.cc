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
#include "kernels/llvm/pointwise.h"

namespace tenon::kernels {
namespace {

using codegen::kNone;

bool is_reduction(const ir::Node& node) {
  const ir::Primitive* primitive = ir::find_primitive(node.op);
  return primitive != nullptr && primitive->kind == ir::PrimitiveClass::kReduction;
}

class LoopEmitter {
 public:
  LoopEmitter(const LoopProblem& problem, LoopSchedule schedule)
      : problem_(problem),
        body_(*problem.body),
        schedule_(std::move(schedule)),
        writer_(problem.name),
        b_(writer_.builder),
        places_(writer_, problem_, schedule_),
        elements_(writer_, problem_, schedule_, places_) {}

  Launch run();

 private:
  using Carried = std::vector<Tile>;
  using TileBody = std::function<Carried(std::span<const Tile>)>;

  // What is computed inside is forgotten afterwards.
  template <typename Inside>
  auto in_scope(const Inside& inside) {
    memo_.emplace_back();
    code_memo_.emplace_back();
    reciprocals_.emplace_back();
    places_.enter_scope();
    struct Leave {
      LoopEmitter& emitter;
      ~Leave() {
        emitter.memo_.pop_back();
        emitter.code_memo_.pop_back();
        emitter.reciprocals_.pop_back();
        emitter.places_.leave_scope();
      }
    } leave{*this};
    return inside();
  }

  // ---- parameters and scratch

  void declare_parameters() {
    elements_.declare_buffers();
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

  Dim reduced_count() const {
    Dim count = 1;
    for (int axis : problem_.reduced_axes) count = count * problem_.domain[axis];
    return count;
  }

  void allocate_stashes() {
    for (const auto& [value, stash] : schedule_.stashes) {
      if (stash.store >= 0) continue;
      Dim elements = schedule_.lanes;
      for (int axis : schedule_.reduced_axes) {
        elements = elements * (schedule_.is_vector(axis)
                                   ? ceil_div(schedule_.vector_size, Dim(schedule_.lanes))
                                   : problem_.domain[axis]);
      }
      scratch_[value] = b_.alloc(compute_type(body_.value(value).dtype), elements.value());
    }
  }

  // ---- the nest

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
    hoist();
    emit_rows(row_chunk, vector_chunk);
  }

  // [chunk * size, min((chunk + 1) * size, total))
  std::pair<Tile, Tile> range(Tile chunk, const Dim& size, const Dim& chunks, const Dim& total) {
    if (chunks.is(1)) return {b_.index(0), writer_.index(total)};
    const Tile first = b_.mul(chunk, writer_.index(size));
    return {first, b_.min(b_.add(first, writer_.index(size)), writer_.index(total))};
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

  void emit_squares(Tile first, Tile last, Tile vector_chunk) {
    const Tile step = b_.index(schedule_.tile_rows);
    const auto at = [&](Tile row, Tile extent) {
      return in_scope([&] {
        places_.open(schedule_.row_axis, row);
        places_.set_row_extent(extent);
        emit_row(vector_chunk);
        places_.set_row_extent(kNone);
        places_.close(schedule_.row_axis);
        return Carried{};
      });
    };
    const Tile whole_end = b_.sub(last, b_.rem(b_.sub(last, first), step));
    b_.loop(first, whole_end, step, {},
            [&](Tile row, std::span<const Tile>) { return at(row, kNone); });
    if (mod(problem_.domain[schedule_.row_axis], Dim(schedule_.tile_rows)).is(0)) return;
    b_.branch(b_.less(whole_end, last), [&] { return at(whole_end, b_.sub(last, whole_end)); });
  }

  void emit_row(Tile vector_chunk) {
    const bool kept = schedule_.flat || (schedule_.vector_axis >= 0 && !vector_is_reduced());
    if (!kept) return emit_stages();
    const auto [first, last] = range(vector_chunk, schedule_.vector_chunk, schedule_.vector_chunks,
                                     schedule_.vector_size);
    tiles_over(first, last, {}, [&](std::span<const Tile>) {
      emit_stages();
      return Carried{};
    });
  }

  void emit_stages() {
    for (stage_ = 0; stage_ < schedule_.stages.size(); ++stage_) reduce_stage();
    AxisSet reduced = 0;
    for (int axis : problem_.reduced_axes) reduced |= AxisSet{1} << axis;
    std::vector<size_t> whole;
    for (size_t i = 0; i < problem_.stores.size(); ++i) {
      if (axes_of(problem_.stores[i].place) & reduced) {
        whole.push_back(i);
      } else {
        elements_.store(i, codes(problem_.stores[i].value));
      }
    }
    if (whole.empty()) return;
    over_reduced_axes(0, {}, [&](std::span<const Tile>) {
      // All are read before any is written: an output may hold a stashed value.
      std::vector<Tile> results;
      for (size_t i : whole) results.push_back(codes(problem_.stores[i].value));
      for (size_t i = 0; i < whole.size(); ++i) elements_.store(whole[i], results[i]);
      return Carried{};
    });
  }

  void reduce_stage() {
    std::vector<Reducer> reducers;
    Carried initial;
    for (ir::NodeId id : schedule_.stages[stage_]) {
      const ir::Node& node = body_.node(id);
      const bool lanes = vector_is_reduced() || depends_on_lanes(node.input(0));
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
        const Tile operand = number(reducer.node.input(0));
        const Tile mask = vector_is_reduced() ? places_.lane_mask() : kNone;
        for (Tile tile : reducer.take(so_far, operand, reduced_position(reducer.node), mask)) {
          next.push_back(tile);
        }
      }
      keep_stashes();
      return next;
    });
    size_t at = 0;
    for (const Reducer& reducer : reducers) {
      const Accumulator total(totals.begin() + at, totals.begin() + at + reducer.width());
      at += reducer.width();
      remember(reducer.node.output(0), reducer.finish(total, vector_is_reduced()));
    }
    hoist();
  }

  Tile reduced_position(const ir::Node& node) {
    if (!needs_position(node)) return kNone;
    if (problem_.reduced_axes.empty()) return b_.integer_constant(DType::kI64, 0);
    return places_.position(problem_.reduced_axes.front());
  }

  Carried over_reduced_axes(size_t depth, const Carried& carried, const TileBody& inside) {
    if (depth == schedule_.reduced_axes.size()) {
      return in_scope([&] { return inside(carried); });
    }
    const int axis = schedule_.reduced_axes[depth];
    const Tile size = writer_.index(problem_.domain[axis]);
    const auto deeper = [&](std::span<const Tile> now) {
      return over_reduced_axes(depth + 1, Carried(now.begin(), now.end()), inside);
    };
    return schedule_.is_vector(axis) ? tiles_over(b_.index(0), size, carried, deeper)
                                     : loop_over(axis, b_.index(0), size, carried, deeper);
  }

  Carried loop_over(int axis, Tile first, Tile last, const Carried& carried,
                    const TileBody& inside) {
    return b_.loop(first, last, b_.index(1), carried,
                   [&](Tile counter, std::span<const Tile> now) {
                     return in_scope([&] {
                       places_.open(axis, counter);
                       hoist();
                       Carried next = inside(now);
                       places_.close(axis);
                       return next;
                     });
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
    return in_scope([&] {
      places_.set_extent(extent);
      if (schedule_.flat) {
        places_.open_flat(first);
      } else {
        places_.open(schedule_.vector_axis, first);
      }
      if (!schedule_.reduced_axes.empty() && !vector_is_reduced()) hoist();
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

  // ---- values

  // Values that every deeper point shares are computed here, once.
  void hoist() {
    for (const tiling::Access& load : problem_.loads) {
      if (problem_.is_baked(load.input)) continue;
      places_.hoist_gathers(load);
      if (is_settled(load.value)) number(load.value);
    }
    for (ir::NodeId id : problem_.region) {
      const ir::Node& node = body_.node(id);
      if (!is_reduction(node) && is_settled(node.output(0)) && operands_known(node)) {
        number(node.output(0));
      } else if (divides_by_sum(node) && find(memo_, node.input(1)) != kNone) {
        reciprocal(node.input(1));
      }
    }
  }

  bool is_settled(ir::ValueId id) const { return places_.is_open(schedule_.dependence.at(id)); }

  // Results of reductions exist only after their stage.
  bool operands_known(const ir::Node& node) const {
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ir::ValueId id) {
      return id == ir::kNoValue || problem_.find_load(id) != nullptr || find(memo_, id) != kNone;
    });
  }

  bool depends_on_lanes(ir::ValueId id) const {
    const AxisSet axes = schedule_.dependence.at(id);
    if (schedule_.flat || schedule_.tile_rows > 1) return axes != 0;
    return schedule_.vector_axis >= 0 && (axes >> schedule_.vector_axis & 1) != 0;
  }

  using Scopes = std::vector<std::map<ir::ValueId, Tile>>;
  static Tile find(const Scopes& scopes, ir::ValueId id) {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
      if (const auto found = scope->find(id); found != scope->end()) return found->second;
    }
    return kNone;
  }
  Tile remember(ir::ValueId id, Tile tile) { return memo_.back()[id] = tile; }

  Tile number(ir::ValueId id) {
    if (const Tile known = find(memo_, id); known != kNone) return known;
    return remember(id, compute(id));
  }

  Tile compute(ir::ValueId id) {
    if (const tiling::Access* load = problem_.find_load(id)) return load_number(*load);
    if (const Tile stashed = read_stash(id); stashed != kNone) return stashed;
    const ir::Node* node = body_.producer(id);
    if (node == nullptr) throw InternalError("a loop value with no producer");
    if (is_reduction(*node)) throw InternalError(fmt::format("{} is read too early", node->op));
    if (node->is("tenon::Position")) return position(*node);
    if (node->is("tenon::DimValue")) return dim_value(*node);
    if (makes_codes(*node)) return decode_tile(b_, codes(id), body_.value(id).dtype);
    if (divides_by_sum(*node)) return b_.mul(number(node->input(0)), reciprocal(node->input(1)));
    return emit_pointwise(b_, body_, *node, operands(*node));
  }

  // Softmax and the norms divide a row by a sum, or the root of one, that rounding has touched
  // already: one reciprocal per row instead of a division per element.
  bool divides_by_sum(const ir::Node& node) const {
    if (!node.is("Div") || depends_on_lanes(node.input(1)) || !depends_on_lanes(node.input(0)) ||
        !is_floating(compute_type(body_.value(node.output(0)).dtype))) {
      return false;
    }
    const ir::Node* divisor = body_.producer(node.input(1));
    if (divisor == nullptr) return false;
    return divisor->is("ReduceSum") || (divisor->is("Sqrt") && has_sum(divisor->input(0)));
  }

  bool has_sum(ir::ValueId id) const {
    const ir::Node* node = body_.producer(id);
    if (node == nullptr || problem_.find_load(id) != nullptr) return false;
    if (node->is("ReduceSum") || node->is("ReduceMean")) return true;
    return std::any_of(node->inputs.begin(), node->inputs.end(),
                       [&](ir::ValueId input) { return input != ir::kNoValue && has_sum(input); });
  }

  Tile reciprocal(ir::ValueId id) {
    if (const Tile known = find(reciprocals_, id); known != kNone) return known;
    return reciprocals_.back()[id] = b_.unary(codegen::Fn::kReciprocal, number(id));
  }

  std::vector<Tile> operands(const ir::Node& node) {
    std::vector<Tile> tiles;
    for (ir::ValueId id : node.inputs) tiles.push_back(id == ir::kNoValue ? kNone : number(id));
    return tiles;
  }

  // What memory will hold.
  Tile codes(ir::ValueId id) {
    if (const Tile known = find(code_memo_, id); known != kNone) return known;
    return code_memo_.back()[id] = compute_codes(id);
  }

  Tile compute_codes(ir::ValueId id) {
    const DType dtype = body_.value(id).dtype;
    if (const tiling::Access* load = problem_.find_load(id)) {
      const bool plain = load->guards.empty() && !problem_.is_baked(load->input);
      return plain ? elements_.load(*load) : encode_tile(b_, number(id), dtype);
    }
    const ir::Node* node = body_.producer(id);
    if (node != nullptr && makes_codes(*node) && !is_stashed(id)) {
      return emit_codes(b_, body_, *node, operands(*node));
    }
    return encode_tile(b_, number(id), dtype);
  }

  Tile load_number(const tiling::Access& load) {
    const DType dtype = body_.value(load.value).dtype;
    if (problem_.is_baked(load.input)) return baked(load.input);
    if (load.guards.empty()) return decode_tile(b_, codes(load.value), dtype);
    Tile value = decode_tile(b_, elements_.load(load), dtype);
    for (auto guard = load.guards.rbegin(); guard != load.guards.rend(); ++guard) {
      const Tile parts[] = {places_.guard(*guard), value, fill(*guard)};
      const std::vector<Tile> same = broadcast_operands(b_, parts);
      value = b_.select(same[0], same[1], same[2]);
    }
    return value;
  }

  Tile baked(ir::ValueId id) {
    const ir::Tensor& tensor = *body_.value(id).constant;
    return constant_tile(b_, tensor.dtype, tensor.data, 0);
  }

  Tile fill(const tiling::Guard& guard) {
    if (problem_.is_baked(guard.fill)) return baked(guard.fill);
    tiling::Access scalar;
    scalar.value = scalar.input = guard.fill;
    scalar.strides.assign(problem_.domain.size(), Dim(0));
    return decode_tile(b_, elements_.load(scalar), body_.value(guard.fill).dtype);
  }

  Tile position(const ir::Node& node) {
    const auto id = std::find_if(problem_.positions.begin(), problem_.positions.end(),
                                 [&](const auto& entry) { return &body_.node(entry.first) == &node; });
    if (id == problem_.positions.end()) throw InternalError("a Position on no axis");
    return b_.cast(places_.position(id->second), compute_type(body_.value(node.output(0)).dtype));
  }

  Tile dim_value(const ir::Node& node) {
    return b_.from_index(writer_.index(Dim::parse(node.text("dim", "0"))),
                         compute_type(body_.value(node.output(0)).dtype));
  }

  // ---- stashes

  void keep_stashes() {
    for (const auto& [value, stash] : schedule_.stashes) {
      if (stash.stage != static_cast<int>(stage_)) continue;
      const Tile numbers = number(value);
      if (stash.store >= 0) {
        elements_.keep(stash.store, numbers);
      } else {
        b_.store(scratch_access(value, !b_.type(numbers).shape.empty()), numbers);
      }
    }
  }

  // By an earlier stage.
  bool is_stashed(ir::ValueId id) const {
    const auto stash = schedule_.stashes.find(id);
    return stash != schedule_.stashes.end() && stash->second.stage < static_cast<int>(stage_);
  }

  Tile read_stash(ir::ValueId id) {
    if (!is_stashed(id)) return kNone;
    const auto stash = schedule_.stashes.find(id);
    if (stash->second.store >= 0) return elements_.load_back(stash->second.store);
    const bool lanes = depends_on_lanes(id);
    return b_.load(scratch_access(id, lanes), lanes ? schedule_.tile_shape() : std::vector<int>{});
  }

  codegen::Access scratch_access(ir::ValueId id, bool lanes) {
    Tile place = b_.index(0);
    for (int axis : schedule_.reduced_axes) {
      if (schedule_.is_vector(axis)) continue;
      place = b_.add(b_.mul(place, writer_.index(problem_.domain[axis])), places_.coordinate(axis));
    }
    if (vector_is_reduced()) {
      const Dim padded =
          ceil_div(schedule_.vector_size, Dim(schedule_.lanes)) * Dim(schedule_.lanes);
      place = b_.add(b_.mul(place, b_.index(padded.value())),
                     places_.coordinate(schedule_.vector_axis));
    } else {
      place = b_.mul(place, b_.index(schedule_.lanes));
    }
    codegen::Access access;
    access.buffer = scratch_.at(id);
    access.offset = place;
    if (lanes) access.strides = {b_.index(1)};
    return access;
  }

  const LoopProblem& problem_;
  const ir::Graph& body_;
  const LoopSchedule schedule_;
  LaunchWriter writer_;
  codegen::Builder& b_;
  Places places_;
  Elements elements_;
  Scopes memo_, code_memo_, reciprocals_;
  std::map<ir::ValueId, Tile> scratch_;
  size_t stage_ = 0;  // being emitted
};

Launch LoopEmitter::run() {
  declare_parameters();
  allocate_stashes();
  in_scope([&] { emit_task(); });
  Launch launch = writer_.finish(schedule_.tasks, schedule_.task_cost);
  launch.checks = problem_.checks;
  return launch;
}

Support supports_stores(const LoopProblem& problem, const LoopSchedule& schedule) {
  for (const LoopStore& store : problem.stores) {
    const DType dtype = problem.body->value(store.value).dtype;
    if (!is_packed(dtype) || problem.domain.empty()) continue;
    const bool whole = schedule.flat
                           ? store.place.strides == contiguous_strides(problem.domain) &&
                                 store.place.offset.is(0) && store.place.gathers.empty()
                           : is_byte_aligned(store.place, schedule.vector_axis, dtype);
    if (!whole) {
      return Support::no(fmt::format("rows of the {} result do not begin at whole bytes",
                                     name(dtype)));
    }
  }
  return Support::yes();
}

}  // namespace

Support supports_problem(const LoopProblem& problem, const codegen::HostTarget& target) {
  if (problem.domain.size() > 60) return Support::no("more than 60 axes");
  for (const tiling::Access& load : problem.loads) {
    if (Support answer = supports_type(problem.body->value(load.value).dtype); !answer) return answer;
  }
  for (ir::NodeId id : problem.region) {
    const ir::Node& node = problem.body->node(id);
    const Support answer = is_reduction(node) ? supports_reduction(*problem.body, node)
                                              : supports_pointwise(*problem.body, node);
    if (!answer) return answer;
  }
  return supports_stores(problem, make_schedule(problem, target));
}

Launch emit_loop(const LoopProblem& problem, const codegen::HostTarget& target) {
  return LoopEmitter(problem, make_schedule(problem, target)).run();
}

}  // namespace tenon::kernels
