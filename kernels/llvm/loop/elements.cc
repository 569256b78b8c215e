#include "kernels/llvm/loop/elements.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

using codegen::Fn;
using codegen::kNone;

}  // namespace

void Elements::declare_inputs() {
  for (const auto& [value, argument] : problem_.buffers) {
    buffers_[value] = writer_.buffer(fmt::format("in{}", buffers_.size()),
                                     storage_type(dtype_of(value)), argument);
  }
  places_.set_index_buffers(buffers_);
}

void Elements::declare_buffers() {
  declare_inputs();
  for (const LoopStore& store : problem_.stores) {
    store_buffers_.push_back(writer_.buffer(fmt::format("out{}", store_buffers_.size()),
                                            storage_type(dtype_of(store.value)), store.buffer));
  }
}

// Lanes that may be read: inside the domain and inside every guard. kNone: all.
Tile Elements::load_mask(const tiling::Access& access) {
  Tile mask = places_.lane_mask();
  for (const tiling::Guard& guard : access.guards) {
    Tile inside = places_.guard(guard);
    if (b_.type(inside).shape.empty()) inside = b_.splat(inside, {schedule_.lanes});
    mask = mask == kNone ? inside : b_.binary(Fn::kAnd, mask, inside);
  }
  return mask;
}

Tile Elements::load(const tiling::Access& access) {
  const Tile buffer = buffers_.at(access.input);
  const bool packed = is_packed(dtype_of(access.input));
  if (const tiling::BlockTerm* block = small_block(access); block != nullptr && !packed) {
    return load_small_blocks(access, *block, buffer);
  }
  const Place place = places_.place_of(access);
  bool guarded_lanes = false;
  for (const tiling::Guard& guard : access.guards) {
    for (const tiling::Bound& bound : guard.bounds) {
      guarded_lanes |= schedule_.flat || schedule_.is_vector(bound.axis);
    }
  }
  if (place.is_scalar() && !guarded_lanes) {
    if (!access.guards.empty()) return load_guarded_scalar(access, buffer, place);
    if (packed) return load_packed(access, buffer, place, kNone);
    return b_.load({buffer, place.scalar, {}, {}}, {});
  }
  if (schedule_.tile_rows > 1) return load_square(buffer, place);
  const Tile mask = access.guards.empty() ? kNone : load_mask(access);
  return packed ? load_packed(access, buffer, place, mask) : load_tile(buffer, place, mask);
}

Tile Elements::load_guarded_scalar(const tiling::Access& access, Tile buffer, const Place& place) {
  Tile inside = kNone;
  for (const tiling::Guard& guard : access.guards) {
    const Tile one = places_.guard(guard);
    inside = inside == kNone ? one : b_.binary(Fn::kAnd, inside, one);
  }
  const DType type = b_.type(buffer).dtype;
  const bool packed = is_packed(dtype_of(access.input));
  return b_.branch(
      inside,
      [&] {
        return std::vector<Tile>{packed ? load_packed(access, buffer, place, kNone)
                                        : b_.load({buffer, place.scalar, {}, {}}, {})};
      },
      [&] { return std::vector<Tile>{b_.constant(type, 0)}; })[0];
}

// A guard makes lanes come and go anywhere in the tile; without one only the extent matters.
Tile Elements::load_tile(Tile buffer, const Place& place, Tile mask) {
  if (place.lanes == kNone && mask == kNone) {
    return b_.load({buffer, place.scalar, {writer_.index(place.stride)}, {places_.extent()}},
                   {schedule_.lanes});
  }
  if (mask == kNone) mask = places_.lane_mask();
  return b_.gather(buffer, place.scalar, places_.offsets_of(place), mask);
}

// Read along whichever direction has neighbours in memory.
Tile Elements::load_square(Tile buffer, const Place& place) {
  const Tile stride = writer_.index(place.stride), row_stride = writer_.index(place.row_stride);
  if (place.row_stride.is(1) && !place.stride.is(1)) {
    return b_.transpose(b_.load(
        {buffer, place.scalar, {stride, row_stride}, {places_.extent(), places_.row_extent()}},
        {schedule_.lanes, schedule_.tile_rows}));
  }
  return b_.load(
      {buffer, place.scalar, {row_stride, stride}, {places_.row_extent(), places_.extent()}},
      {schedule_.tile_rows, schedule_.lanes});
}

// The one block term along the lanes where each block covers a whole part of a tile and nothing
// else differs between lanes: a few neighbours are read and repeated.
const tiling::BlockTerm* Elements::small_block(const tiling::Access& access) const {
  const int axis = schedule_.vector_axis;
  if (schedule_.flat || axis < 0 || !access.guards.empty()) return nullptr;
  if (!access.strides[axis].is(0)) return nullptr;
  const tiling::BlockTerm* found = nullptr;
  for (const tiling::BlockTerm& block : access.blocks) {
    if (block.axis != axis) continue;
    if (found != nullptr) return nullptr;
    found = &block;
  }
  for (const tiling::GatherTerm& term : access.gathers) {
    if (axes_of(term) & (AxisSet{1} << axis)) return nullptr;
  }
  if (found == nullptr || !found->step.is(1) || !found->stride.is(1)) return nullptr;
  const bool parts = schedule_.lanes > found->divisor && schedule_.lanes % found->divisor == 0 &&
                     mod(found->offset, Dim(found->divisor)).is(0);
  return parts ? found : nullptr;
}

Tile Elements::load_small_blocks(const tiling::Access& access, const tiling::BlockTerm& block,
                                 Tile buffer) {
  const Tile divisor = b_.index(block.divisor);
  const Tile first = b_.add({places_.coordinate(block.axis), writer_.index(block.offset)});
  Place place = places_.place_of(access, &block);
  place.scalar = b_.add(place.scalar, b_.div(first, divisor));
  Tile extent = places_.extent();
  if (extent != kNone) {
    extent = b_.div(b_.add(extent, b_.index(block.divisor - 1)), divisor);
  }
  const int repeat = static_cast<int>(block.divisor);
  const int blocks = schedule_.lanes / repeat;
  const Tile scales = b_.load({buffer, place.scalar, {b_.index(1)}, {extent}}, {blocks});
  const Tile repeated = b_.broadcast(b_.reshape(scales, {blocks, 1}), {blocks, repeat});
  return b_.reshape(repeated, {schedule_.lanes});
}

// How far each lane's element stands from the low end of its byte.
Tile Elements::shift_table(int bits) {
  const auto all = [&](int64_t value) {
    return b_.integer_constant(DType::kI32, value, {schedule_.lanes});
  };
  const Tile lane = b_.iota(DType::kI32, {schedule_.lanes}, 0);
  return b_.cast(b_.binary(Fn::kAnd, {b_.mul(lane, all(bits)), all(7)}), DType::kU8);
}

Tile Elements::unpack_bytes(Tile bytes, int bits) {
  const int count = 8 / bits;
  const int size = schedule_.lanes / count;
  const Tile repeated = b_.broadcast(b_.reshape(bytes, {size, 1}), {size, count});
  return b_.binary(Fn::kShiftRight, {b_.reshape(repeated, {schedule_.lanes}), shift_table(bits)});
}

Tile Elements::load_packed(const tiling::Access& access, Tile buffer, const Place& place,
                           Tile mask) {
  const DType dtype = dtype_of(access.input);
  const int bits = bit_width(dtype);
  const Tile count = b_.index(8 / bits);
  const Tile low = b_.integer_constant(DType::kU8, (1 << bits) - 1);
  if (place.is_scalar() && mask == kNone) {
    const Tile byte = b_.load({buffer, b_.div(place.scalar, count), {}, {}}, {});
    const Tile shift = b_.mul({b_.rem(place.scalar, count), b_.index(bits)});
    return b_.binary(Fn::kAnd, b_.binary(Fn::kShiftRight, byte, b_.from_index(shift, DType::kU8)),
                     low);
  }
  const bool aligned = schedule_.lanes >= 8 / bits && mask == kNone &&
                       is_byte_aligned(access, schedule_.vector_axis, dtype);
  if (aligned) {
    Tile extent = places_.extent();
    if (extent != kNone) extent = b_.div(b_.add(extent, b_.index(8 / bits - 1)), count);
    const Tile bytes = b_.load({buffer, b_.div(place.scalar, count), {b_.index(1)}, {extent}},
                               {schedule_.lanes * bits / 8});
    return b_.binary(Fn::kAnd, unpack_bytes(bytes, bits), low);
  }
  if (mask == kNone) mask = places_.lane_mask();
  const auto lanes = [&](int64_t value) {
    return b_.integer_constant(DType::kI64, value, {schedule_.lanes});
  };
  const Tile element =
      b_.add({places_.offsets_of(place),
              b_.splat(b_.from_index(place.scalar, DType::kI64), {schedule_.lanes})});
  const Tile byte_number = b_.binary(Fn::kShiftRight, element, lanes(bits == 4 ? 1 : 2));
  const Tile within = b_.binary(Fn::kAnd, element, lanes(8 / bits - 1));
  const Tile shift = b_.cast(b_.mul(within, lanes(bits)), DType::kU8);
  const Tile bytes = b_.gather(buffer, b_.index(0), byte_number, mask);
  return b_.binary(Fn::kAnd, b_.binary(Fn::kShiftRight, bytes, shift), low);
}

void Elements::store(size_t store, Tile codes) {
  const LoopStore& target = problem_.stores[store];
  const Place place = places_.place_of(target.place);
  if (!place.is_scalar() && b_.type(codes).shape.empty()) {
    codes = b_.splat(codes, schedule_.tile_shape());
  }
  const int bits = bit_width(dtype_of(target.value));
  if (bits < 8) {
    store_packed(store_buffers_[store], place, codes, bits);
  } else {
    store_tile(store_buffers_[store], place, codes);
  }
}

// A guard makes a tile even of an axis of size 1, whose one element has no stride.
bool Elements::is_one_element(const Place& place, Tile codes) const {
  return place.is_scalar() && b_.type(codes).shape.empty();
}

Dim Elements::lane_stride(const Place& place) { return place.is_scalar() ? Dim(1) : place.stride; }

void Elements::store_tile(Tile buffer, const Place& place, Tile codes) {
  if (is_one_element(place, codes)) {
    b_.store({buffer, place.scalar, {}, {}}, codes);
  } else if (schedule_.tile_rows > 1) {
    b_.store({buffer,
              place.scalar,
              {writer_.index(place.row_stride), writer_.index(place.stride)},
              {places_.row_extent(), places_.extent()}},
             codes);
  } else if (place.lanes == kNone) {
    b_.store({buffer, place.scalar, {writer_.index(lane_stride(place))}, {places_.extent()}},
             codes);
  } else {
    const Tile offsets = places_.offsets_of(place);
    b_.scatter(buffer, place.scalar, offsets, codes, places_.lane_mask());
  }
}

// Whole bytes only; lanes outside the domain become zero bits of the last one.
void Elements::store_packed(Tile buffer, const Place& place, Tile codes, int bits) {
  const Tile count = b_.index(8 / bits);
  if (is_one_element(place, codes)) {
    b_.store({buffer, b_.div(place.scalar, count), {}, {}}, codes);
    return;
  }
  if (place.lanes != kNone || !lane_stride(place).is(1)) {
    throw InternalError("sub-byte elements can only be stored side by side");
  }
  Tile extent = places_.extent();
  if (extent != kNone) {
    const Tile zero = b_.integer_constant(DType::kU8, 0, {schedule_.lanes});
    codes = b_.select(places_.lane_mask(), codes, zero);
    extent = b_.div(b_.add(extent, b_.index(8 / bits - 1)), count);
  }
  const int size = schedule_.lanes * bits / 8;
  const Tile shifted = b_.binary(Fn::kShiftLeft, codes, shift_table(bits));
  const Tile bytes = b_.reduce(Fn::kOr, b_.reshape(shifted, {size, 8 / bits}), 1);
  b_.store({buffer, b_.div(place.scalar, count), {b_.index(1)}, {extent}}, bytes);
}

Tile Elements::load_back(size_t store) {
  const Place place = places_.place_of(problem_.stores[store].place);
  const Tile buffer = store_buffers_[store];
  if (place.is_scalar()) return b_.load({buffer, place.scalar, {}, {}}, {});
  return load_tile(buffer, place, kNone);
}

void Elements::keep(size_t store, Tile numbers) {
  const Place place = places_.place_of(problem_.stores[store].place);
  if (!place.is_scalar() && b_.type(numbers).shape.empty()) {
    numbers = b_.splat(numbers, {schedule_.lanes});
  }
  store_tile(store_buffers_[store], place, numbers);
}

}  // namespace tenon::kernels
