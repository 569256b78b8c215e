// GatherND's and ScatterND's indices: the last axis of the index tensor holds one coordinate per
// indexed axis of the data.
#pragma once

#include <vector>

#include "kernels/llvm/loop/movement.h"

namespace tenon::kernels {

struct IndexTuples {
  Shape domain;                    // batch…, tuples…, rest of the data…
  Shape index_strides;             // of the index tensor, per domain axis
  Shape data_strides;              // of the data, per domain axis; 0 along the tuples
  std::vector<Dim> tuple_strides;  // of the data, per coordinate of a tuple
  std::vector<Dim> bounds;
  std::vector<IndexCheck> checks;
  size_t tuple_axis = 0;  // first domain axis of the tuples

  tiling::Access place_in_data(const Movement& movement, ir::ValueId indices) const;
};

// Throws UserError where the shapes do not fit.
IndexTuples index_tuples(const ir::Graph& graph, ir::ValueId data, ir::ValueId indices,
                         size_t batch_dims);

// i32 or i64, or a UserError.
void require_indices(const ir::Graph& graph, ir::ValueId indices);
// Non-negative; throws UserError when it is outside the rank.
size_t checked_axis(int64_t axis, size_t rank);

}  // namespace tenon::kernels
