#include "kernels/llvm/loop/places.h"

#include <algorithm>
#include <bit>
#include <ranges>

#include "base/error.h"

namespace tenon::kernels {
namespace {

using codegen::Fn;
using codegen::kNone;

// Whatever they do with it afterwards.
bool reads_same_index(const tiling::GatherTerm& a, const tiling::GatherTerm& b) {
  return a.indices == b.indices && a.indices_offset == b.indices_offset &&
         a.indices_strides == b.indices_strides && a.indices_blocks == b.indices_blocks &&
         a.bound == b.bound && a.from_end == b.from_end;
}

}  // namespace

Places::Places(LaunchWriter& writer, const LoopProblem& problem, const LoopSchedule& schedule)
    : writer_(writer),
      b_(writer.builder),
      problem_(problem),
      schedule_(schedule),
      coordinates_(problem.domain.size(), kNone) {
  enter_scope();
}

void Places::declare_sizes() {
  const auto declare_all = [&](const std::vector<Dim>& dims) {
    for (const Dim& dim : dims) writer_.declare(dim);
  };
  const auto declare_blocks = [&](const std::vector<tiling::BlockTerm>& blocks) {
    for (const auto& block : blocks) declare_all({block.step, block.offset, block.stride});
  };
  const auto declare_access = [&](const tiling::Access& access) {
    writer_.declare(access.offset);
    declare_all(access.strides);
    declare_blocks(access.blocks);
    for (const tiling::GatherTerm& term : access.gathers) {
      declare_all({term.indices_offset, term.bound, term.step, term.offset, term.stride});
      declare_all(term.indices_strides);
      declare_blocks(term.indices_blocks);
    }
    for (const tiling::Guard& guard : access.guards) {
      for (const auto& bound : guard.bounds) declare_all({bound.step, bound.offset, bound.size});
    }
  };
  declare_all(problem_.domain);
  for (const tiling::Access& load : problem_.loads) declare_access(load);
  for (const LoopStore& store : problem_.stores) declare_access(store.place);
}

void Places::open(int axis, Tile coordinate) {
  coordinates_[axis] = coordinate;
  open_ |= AxisSet{1} << axis;
}

// A reduced axis of size 1 is not walked again by the stages that follow.
Tile Places::coordinate(int axis) {
  const Tile walked = coordinates_.at(axis);
  return walked == kNone && problem_.domain[axis].is(1) ? b_.index(0) : walked;
}

void Places::close(int axis) {
  coordinates_[axis] = kNone;
  open_ &= ~(AxisSet{1} << axis);
}

void Places::open_flat(Tile first_element) {
  flat_first_ = first_element;
  Tile rest = b_.add({splat_index(first_element), lane_numbers()});
  for (size_t axis = problem_.domain.size(); axis-- > 0;) {
    if (axis == 0) {
      open(0, rest);
      break;
    }
    const Tile size = splat_index(number(problem_.domain[axis]));
    open(static_cast<int>(axis), b_.rem(rest, size));
    rest = b_.div(rest, size);
  }
}

void Places::close_flat() {
  for (size_t axis = 0; axis < problem_.domain.size(); ++axis) close(static_cast<int>(axis));
  flat_first_ = kNone;
}

Tile Places::lane_numbers() { return b_.iota(DType::kI64, {schedule_.lanes}, 0); }

Tile Places::splat_index(Tile index) {
  return b_.splat(b_.from_index(index, DType::kI64), {schedule_.lanes});
}

Tile Places::lane_mask() {
  if (extent_ == kNone) return kNone;
  return b_.compare(Fn::kLess, {lane_numbers(), splat_index(extent_)});
}

Tile Places::scale_lanes(Tile lanes, const Dim& factor) {
  return factor.is(1) ? lanes : b_.mul(lanes, splat_index(number(factor)));
}

Tile Places::divide_lanes(Tile lanes, int64_t divisor) {
  const auto unsigned_divisor = static_cast<uint64_t>(divisor);
  if (std::has_single_bit(unsigned_divisor)) {
    return b_.binary(
        Fn::kShiftRight, lanes,
        b_.integer_constant(DType::kI64, std::countr_zero(unsigned_divisor), {schedule_.lanes}));
  }
  return b_.div(lanes, b_.integer_constant(DType::kI64, divisor, {schedule_.lanes}));
}

// step * x_axis + offset, one per lane.
Tile Places::scaled_coordinates(int axis, const Dim& step, const Dim& offset) {
  if (schedule_.flat) {
    return b_.add({scale_lanes(coordinates_[axis], step), splat_index(number(offset))});
  }
  const Tile first = b_.add({b_.mul({coordinate(axis), number(step)}), number(offset)});
  if (!schedule_.is_vector(axis)) return splat_index(first);
  return b_.add({scale_lanes(lane_numbers(), step), splat_index(first)});
}

Tile Places::position(int axis) {
  return in_lanes(axis) ? scaled_coordinates(axis, 1, 0)
                        : b_.from_index(coordinate(axis), DType::kI64);
}

void Places::add_lanes(Place& place, Tile lanes) {
  place.lanes = place.lanes == kNone ? lanes : b_.add(place.lanes, lanes);
}

void Places::add_axis(Place& place, int axis, const Dim& stride) {
  if (stride.is(0)) return;
  if (schedule_.flat) return add_lanes(place, scale_lanes(coordinates_[axis], stride));
  place.scalar = b_.add(place.scalar, b_.mul({coordinate(axis), number(stride)}));
  if (schedule_.is_vector(axis)) place.stride = stride;
  if (schedule_.tile_rows > 1 && axis == schedule_.row_axis) place.row_stride = stride;
}

void Places::add_block(Place& place, const tiling::BlockTerm& block) {
  // Tiles begin at multiples of their lanes, so that blocks of a multiple hold whole tiles.
  const bool whole_tiles = !schedule_.flat && block.step.is(1) &&
                           mod(block.offset, Dim(schedule_.lanes)).is(0) &&
                           block.divisor % schedule_.lanes == 0;
  if (!in_lanes(block.axis) || whole_tiles) {
    const Tile index =
        b_.add({b_.mul({coordinate(block.axis), number(block.step)}), number(block.offset)});
    place.scalar = b_.add(place.scalar,
                          b_.mul({b_.div(index, b_.index(block.divisor)), number(block.stride)}));
    return;
  }
  const Tile index = scaled_coordinates(block.axis, block.step, block.offset);
  add_lanes(place, scale_lanes(divide_lanes(index, block.divisor), block.stride));
}

Place Places::sum(const Dim& offset, const std::vector<Dim>& strides,
                  const std::vector<tiling::BlockTerm>& blocks, const tiling::BlockTerm* without) {
  Place place;
  place.scalar = number(offset);
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    add_axis(place, static_cast<int>(axis), strides[axis]);
  }
  for (const tiling::BlockTerm& block : blocks) {
    if (&block != without) add_block(place, block);
  }
  return place;
}

Tile Places::offsets_of(const Place& place) {
  Tile lanes = place.lanes;
  if (!place.stride.is(0)) {
    const Tile walk = scale_lanes(lane_numbers(), place.stride);
    lanes = lanes == kNone ? walk : b_.add(lanes, walk);
  }
  return lanes == kNone ? b_.integer_constant(DType::kI64, 0, {schedule_.lanes}) : lanes;
}

// The index itself: in `scalar`, or per lane in `lanes` with `scalar` 0.
Place Places::read_index(const tiling::GatherTerm& term) {
  const Place place = sum(term.indices_offset, term.indices_strides, term.indices_blocks);
  const Tile buffer = buffers_.at(term.indices);
  const bool known = problem_.known_indices.contains(term.indices);
  const bool may_be_negative = term.from_end && !known;
  const bool clamps = schedule_.clamps_indices && !known;
  Place index;
  if (place.is_scalar()) {
    index.scalar = b_.index_from(b_.load({buffer, place.scalar, {}, {}}, {}));
    if (may_be_negative) {
      const Tile negative = b_.less(index.scalar, b_.index(0));
      index.scalar = b_.select(negative, b_.add(index.scalar, number(term.bound)), index.scalar);
    }
    if (clamps) {
      const Tile last = b_.sub({number(term.bound), b_.index(1)});
      index.scalar = b_.max({b_.index(0), b_.min(index.scalar, last)});
    }
    return index;
  }
  const auto gather = [&] {
    const Tile offsets = offsets_of(place);
    return b_.gather(buffer, place.scalar, offsets, lane_mask());
  };
  Tile read =
      place.lanes == kNone
          ? b_.load({buffer, place.scalar, {number(place.stride)}, {extent_}}, {schedule_.lanes})
          : gather();
  const Tile zero = b_.integer_constant(DType::kI64, 0, {schedule_.lanes});
  index.scalar = b_.index(0);
  index.lanes = b_.cast(read, DType::kI64);
  if (may_be_negative) {
    const Tile negative = b_.compare(Fn::kLess, index.lanes, zero);
    const Tile from_end = b_.add(index.lanes, splat_index(number(term.bound)));
    index.lanes = b_.select(negative, from_end, index.lanes);
  }
  if (clamps) {
    const Tile last = splat_index(b_.sub({number(term.bound), b_.index(1)}));
    index.lanes = b_.max(zero, b_.min(index.lanes, last));
  }
  return index;
}

Place Places::gathered(const tiling::GatherTerm& term) {
  for (const std::vector<ReadIndex>& scope : gathered_ | std::views::reverse) {
    const auto found = std::ranges::find_if(
        scope, [&](const ReadIndex& read) { return reads_same_index(*read.term, term); });
    if (found != scope.end()) return found->index;
  }
  const Place index = read_index(term);
  gathered_.back().push_back({&term, index});
  return index;
}

void Places::add_gather(Place& place, const tiling::GatherTerm& term) {
  const Place index = gathered(term);
  if (index.lanes == kNone) {
    const Tile moved = b_.add({b_.mul(index.scalar, number(term.step)), number(term.offset)});
    const Tile block = b_.div(moved, b_.index(term.divisor));
    place.scalar = b_.add(place.scalar, b_.mul(block, number(term.stride)));
    return;
  }
  Tile lanes = b_.add({scale_lanes(index.lanes, term.step), splat_index(number(term.offset))});
  if (term.divisor != 1) lanes = divide_lanes(lanes, term.divisor);
  add_lanes(place, scale_lanes(lanes, term.stride));
}

// Whether flat lanes read neighbours in memory.
bool Places::walks_flat(const tiling::Access& access) const {
  return access.blocks.empty() && access.gathers.empty() &&
         access.strides == contiguous_strides(problem_.domain);
}

Place Places::place_of(const tiling::Access& access, const tiling::BlockTerm* without) {
  if (schedule_.flat && walks_flat(access)) {
    return {b_.add(flat_first_, number(access.offset)), 1, kNone, 0};
  }
  Place place = sum(access.offset, access.strides, access.blocks, without);
  for (const tiling::GatherTerm& term : access.gathers) add_gather(place, term);
  return place;
}

Tile Places::guard(const tiling::Guard& guard) {
  Tile inside = kNone;
  const auto require = [&](Tile condition) {
    inside = inside == kNone ? condition : b_.binary(Fn::kAnd, inside, condition);
  };
  for (const tiling::Bound& bound : guard.bounds) {
    if (in_lanes(bound.axis)) {
      const Tile index = scaled_coordinates(bound.axis, bound.step, bound.offset);
      const Tile zero = b_.integer_constant(DType::kI64, 0, {schedule_.lanes});
      require(b_.compare(Fn::kGreaterEqual, index, zero));
      require(b_.compare(Fn::kLess, index, splat_index(number(bound.size))));
    } else {
      const Tile index =
          b_.add({b_.mul({coordinate(bound.axis), number(bound.step)}), number(bound.offset)});
      require(b_.unary(Fn::kNot, b_.less(index, b_.index(0))));
      require(b_.less(index, number(bound.size)));
    }
  }
  return inside;
}

void Places::hoist_gathers(const tiling::Access& access) {
  for (const tiling::GatherTerm& term : access.gathers) {
    if (is_open(axes_of(term))) gathered(term);
  }
}

}  // namespace tenon::kernels
