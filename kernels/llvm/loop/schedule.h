// How a loop problem is walked: which axis fills the lanes of a tile, what one task covers, and in
// which order reductions are made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kernels/llvm/loop/problem.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

using AxisSet = uint64_t;  // bit per domain axis

// A value of an earlier stage that later stages read back instead of computing it again.
struct Stash {
  int stage = 0;   // that computes it
  int store = -1;  // whose output buffer holds it until the result overwrites it; -1: own scratch
};

// The nest, outermost first:
//   task -> kept axes but the last two, a range of `row_axis`, a range of `vector_axis` if kept
//     for row: for tile of lanes (if kept): for stage: for reduced axes: [for tile of lanes]
struct LoopSchedule {
  // Lanes run over the whole domain as one row, each lane with coordinates of its own: the way out
  // where no axis can be cut into whole bytes of a sub-byte output.
  bool flat = false;
  int vector_axis = -1;  // -1: the domain is a single point, or flat
  int lanes = 1;         // elements of a tile; a power of two
  int row_axis = -1;     // kept; -1: none but the vector axis
  // Where a load walks along the row axis and a store along the vector axis, tiles are squares that
  // turn in registers: this many rows at a time. 1: a tile is one row.
  int tile_rows = 1;
  // A reduced vector axis lies in one tile: it is read once and serves all stages.
  bool whole_row = false;
  int unroll = 1;  // steps of the innermost reduced axis at once, where it is not the vector axis
  // Nobody checks indices before the launch: those outside are moved to the nearest element.
  bool clamps_indices = false;
  int threads = 1;                // of the block that runs a task on a GPU
  std::vector<int> outer_axes;    // kept, slowest first
  std::vector<int> reduced_axes;  // in loop order; the vector axis last if it is reduced

  Dim vector_size;    // of the vector axis, or of the flat domain
  Dim vector_chunk;   // range of it that one task covers, where it is kept
  Dim row_chunk = 1;  // rows that one task covers
  Dim vector_chunks = 1, row_chunks = 1;
  Dim tasks, task_cost;

  // Reductions by stage: each needs only results of stages before. Stores of full-domain values
  // come in one more stage after the last.
  std::vector<std::vector<ir::NodeId>> stages;
  std::map<ir::ValueId, AxisSet> dependence;  // of every body value that is computed or loaded
  std::map<ir::ValueId, Stash> stashes;

  bool is_vector(int axis) const { return axis == vector_axis; }
  // Shape of a tile of numbers: one number, a row of lanes, or a square.
  std::vector<int> tile_shape() const;
};

// Axes that an element read or written by `access` depends on.
AxisSet axes_of(const tiling::Access& access);
AxisSet axes_of(const tiling::GatherTerm& term);

// For where the settings say that kernels run.
LoopSchedule make_schedule(const LoopProblem& problem, const Settings& settings);
LoopSchedule make_gpu_schedule(const LoopProblem& problem, const codegen::GpuTarget& target);

// Whether every row of a store to a sub-byte buffer begins at a whole byte.
bool is_byte_aligned(const tiling::Access& access, int vector_axis, DType dtype);

}  // namespace tenon::kernels
