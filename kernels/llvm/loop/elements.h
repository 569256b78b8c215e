// Reads and writes the elements of a loop's accesses for the point, or the tile of points, at which
// the emitter stands.
#pragma once

#include <map>
#include <vector>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/loop/problem.h"
#include "kernels/llvm/loop/schedule.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

class Elements {
 public:
  Elements(LaunchWriter& writer, const LoopProblem& problem, const LoopSchedule& schedule);

  // Declares every buffer and every symbolic size that the accesses use; before all other code.
  void declare_parameters();

  // Where the emitter stands. The vector axis has the coordinate of the tile's first lane.
  void open(int axis, Tile coordinate);
  void close(int axis);
  bool is_open(AxisSet axes) const { return (axes & ~open_) == 0; }
  void open_flat(Tile first_element);
  void close_flat();
  // Lanes at or past it are outside the domain; kNone: all are inside.
  void set_extent(Tile extent) { extent_ = extent; }
  Tile extent() const { return extent_; }
  Tile lane_mask();  // bool tile; kNone when all lanes are inside

  // Coordinates along one axis, as i64: a scalar, or one per lane.
  Tile position(int axis);

  // Codes of the elements, unguarded lanes only; `depends_on_lanes` tells a tile from a scalar.
  Tile load(const tiling::Access& access, DType dtype);
  // True where every bound holds: a scalar or one per lane.
  Tile guard(const tiling::Guard& guard);
  void store(const LoopStore& store, Tile codes, DType dtype);
  // Reads indices to gather by that do not depend on axes still closed, once for all tiles.
  void hoist_gathers(const tiling::Access& access);

  // Gathered indices are remembered until the scope in which they were read ends.
  void enter_scope() { gathered_.emplace_back(); }
  void leave_scope() { gathered_.pop_back(); }

  Tile buffer_of_store(size_t store) const { return store_buffers_.at(store); }
  codegen::Access store_access(size_t store);  // whole-domain f32 stores only

 private:
  // scalar + stride * lane + lanes[lane]
  struct Place {
    Tile scalar = codegen::kNone;
    Dim stride;                    // along the vector axis
    Tile lanes = codegen::kNone;   // i64 tile
  };

  Tile number(const Dim& dim) { return writer_.index(dim); }
  Tile lane_numbers();                       // 0, 1, 2 … as i64
  Tile splat_index(Tile index);              // i64 tile of one index
  bool in_lanes(int axis) const { return schedule_.flat || schedule_.is_vector(axis); }
  void add_lanes(Place& place, Tile lanes);
  void add_axis(Place& place, int axis, const Dim& stride);
  void add_block(Place& place, const tiling::BlockTerm& block);
  bool add_block_in_tiles(Place& place, const tiling::BlockTerm& block);
  Place sum(const Dim& offset, const std::vector<Dim>& strides,
            const std::vector<tiling::BlockTerm>& blocks);
  Place place_of(const tiling::Access& access);
  Place gathered(const tiling::GatherTerm& term);
  Place read_index(const tiling::GatherTerm& term);
  Tile floor_divided(Tile lanes, int64_t divisor);
  Tile offsets_of(const Place& place);       // lanes + stride * lane as one i64 tile
  Tile all_lanes_mask(Tile mask);
  Tile guards_of(const tiling::Access& access);
  Tile load_at(Tile buffer, const Place& place, Tile mask, bool broadcast_blocks);
  Tile load_blocks(const tiling::Access& access, Tile buffer);
  Tile load_packed(const tiling::Access& access, Tile buffer, const Place& place, Tile mask,
                   DType dtype);
  void store_packed(Tile buffer, const Place& place, Tile codes, DType dtype);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const LoopProblem& problem_;
  const LoopSchedule& schedule_;
  AxisSet open_ = 0;
  std::vector<Tile> coordinates_;       // index, or i64 tile in flat lanes
  Tile flat_first_ = codegen::kNone;
  Tile extent_ = codegen::kNone;
  std::map<ir::ValueId, Tile> buffers_;
  std::vector<Tile> store_buffers_;
  std::vector<std::map<const tiling::GatherTerm*, Place>> gathered_;
};

}  // namespace tenon::kernels
