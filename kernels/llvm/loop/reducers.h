// Reductions as accumulators of tiles: where they start, how they take an element in, and what the
// lanes make together.
#pragma once

#include <string_view>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

using Accumulator = std::vector<Tile>;

struct Reducer {
  codegen::Builder& b;
  const ir::Node& node;
  DType type;              // of the operand, as computed
  std::vector<int> shape;  // of the accumulating tiles
  Tile count;              // index: elements that go into one result

  Accumulator start() const;
  // `position`: i64 coordinates along the reduced axis, for ArgMax and ArgMin; `mask`: lanes that
  // count, kNone for all.
  Accumulator take(const Accumulator& so_far, Tile operand, Tile position, Tile mask) const;
  // Folds the lanes first where they hold parts of one result.
  Tile finish(Accumulator accumulator, bool fold_lanes) const;
  size_t width() const;  // tiles in the accumulator
};

bool is_reduction(const ir::Node& node);
Support supports_reduction(const ir::Graph& body, const ir::Node& node);
bool needs_position(const ir::Node& node);

}  // namespace tenon::kernels
