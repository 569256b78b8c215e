// Element numbers of a loop's accesses, for the point or the tile of points at which the emitter
// stands.
#pragma once

#include <map>
#include <vector>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/loop/schedule.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// Lane i reads element  scalar + stride * i + lanes[i], in row r of a square row_stride * r
// beyond that.
struct Place {
  Tile scalar = codegen::kNone;  // index
  Dim stride;
  Tile lanes = codegen::kNone;  // i64 tile
  Dim row_stride;

  bool is_scalar() const { return lanes == codegen::kNone && stride.is(0) && row_stride.is(0); }
};

class Places {
 public:
  Places(LaunchWriter& writer, const LoopProblem& problem, const LoopSchedule& schedule);

  // Every symbolic size that the accesses use becomes a parameter.
  void declare_sizes();
  // Buffer parameters of the tensors that are gathered by.
  void set_index_buffers(std::map<ir::ValueId, Tile> buffers) { buffers_ = std::move(buffers); }

  // Where the emitter stands. The vector axis has the coordinate of the tile's first lane.
  void open(int axis, Tile coordinate);
  void close(int axis);
  bool is_open(AxisSet axes) const { return (axes & ~open_) == 0; }
  // All axes at once, one coordinate per lane, from the number of the first lane's element.
  void open_flat(Tile first_element);
  void close_flat();

  // Lanes at or past the extent are outside the domain; kNone: all are inside.
  void set_extent(Tile extent) { extent_ = extent; }
  Tile extent() const { return extent_; }
  // The same for the rows of a square.
  void set_row_extent(Tile extent) { row_extent_ = extent; }
  Tile row_extent() const { return row_extent_; }
  Tile lane_mask();     // bool tile, kNone where all lanes are inside
  Tile lane_numbers();  // 0, 1, 2 … as i64
  Tile coordinate(int axis);

  Tile position(int axis);  // i64: one number, or one per lane
  // `without`: a block term of the access that the caller adds itself.
  Place place_of(const tiling::Access& access, const tiling::BlockTerm* without = nullptr);
  Tile offsets_of(const Place& place);     // stride * i + lanes[i] as an i64 tile
  Tile guard(const tiling::Guard& guard);  // bool: one, or one per lane

  // Reads indices to gather by as soon as the axes that they depend on are open, not once a tile.
  void hoist_gathers(const tiling::Access& access);
  void enter_scope() { gathered_.emplace_back(); }
  void leave_scope() { gathered_.pop_back(); }

 private:
  Tile number(const Dim& dim) { return writer_.index(dim); }
  Tile splat_index(Tile index);
  bool in_lanes(int axis) const { return schedule_.flat || schedule_.is_vector(axis); }
  bool walks_flat(const tiling::Access& access) const;
  void add_lanes(Place& place, Tile lanes);
  void add_axis(Place& place, int axis, const Dim& stride);
  void add_block(Place& place, const tiling::BlockTerm& block);
  void add_gather(Place& place, const tiling::GatherTerm& term);
  Place sum(const Dim& offset, const std::vector<Dim>& strides,
            const std::vector<tiling::BlockTerm>& blocks,
            const tiling::BlockTerm* without = nullptr);
  Place gathered(const tiling::GatherTerm& term);
  Place read_index(const tiling::GatherTerm& term);
  Tile scaled_coordinates(int axis, const Dim& step, const Dim& offset);
  Tile divide_lanes(Tile lanes, int64_t divisor);
  Tile scale_lanes(Tile lanes, const Dim& factor);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const LoopProblem& problem_;
  const LoopSchedule& schedule_;
  AxisSet open_ = 0;
  std::vector<Tile> coordinates_;  // index; i64 tile in flat lanes
  Tile flat_first_ = codegen::kNone;
  Tile extent_ = codegen::kNone, row_extent_ = codegen::kNone;
  std::map<ir::ValueId, Tile> buffers_;
  // Once for all accesses by it: the four corners of a pixel have two indices an axis.
  struct ReadIndex {
    const tiling::GatherTerm* term;
    Place index;
  };
  std::vector<std::vector<ReadIndex>> gathered_;
};

}  // namespace tenon::kernels
