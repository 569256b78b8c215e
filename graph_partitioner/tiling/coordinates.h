// Coordinates walking down a chain of movement ops, from the region to a body input.
#pragma once

#include "graph_partitioner/tiling/index_map.h"

namespace tenon::tiling {

struct AccessResult {
  Support support;
  Access access;
  std::vector<Fit> fits;
};

// How the point x of `domain` reads `value`, which movement ops make of a body input or constant.
AccessResult access_of(const ir::Graph& body, ir::ValueId value, const Shape& domain);

}  // namespace tenon::tiling
