#include "kernels/llvm/index_tuples.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {

void require_indices(const ir::Graph& graph, ir::ValueId indices) {
  const DType dtype = graph.value(indices).dtype;
  if (dtype == DType::kI32 || dtype == DType::kI64) return;
  throw UserError(fmt::format("indices must be i32 or i64, are {}", name(dtype)));
}

size_t checked_axis(int64_t axis, size_t rank) {
  const int64_t from_front = axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
  if (from_front < 0 || from_front >= static_cast<int64_t>(rank)) {
    throw UserError(fmt::format("axis {} is outside rank {}", axis, rank));
  }
  return static_cast<size_t>(from_front);
}

IndexTuples index_tuples(const ir::Graph& graph, ir::ValueId data, ir::ValueId indices,
                         size_t batch_dims) {
  require_indices(graph, indices);
  const Shape& data_shape = *graph.value(data).shape;
  const Shape& index_shape = *graph.value(indices).shape;
  if (index_shape.empty() || !index_shape.back().is_constant()) {
    throw UserError("the length of an index tuple is not known");
  }
  const auto length = static_cast<size_t>(index_shape.back().value());
  if (batch_dims >= index_shape.size() || batch_dims + length > data_shape.size()) {
    throw UserError(fmt::format("tuples of {} do not index data {} after {} batch axes", length,
                                text(data_shape), batch_dims));
  }

  IndexTuples tuples;
  tuples.tuple_axis = batch_dims;
  const Shape data_strides = contiguous_strides(data_shape);
  const Shape index_strides = contiguous_strides(index_shape);
  for (size_t axis = 0; axis + 1 < index_shape.size(); ++axis) {
    tuples.domain.push_back(index_shape[axis]);
    tuples.index_strides.push_back(index_strides[axis]);
    tuples.data_strides.push_back(axis < batch_dims ? data_strides[axis] : Dim(0));
  }
  for (size_t axis = batch_dims + length; axis < data_shape.size(); ++axis) {
    tuples.domain.push_back(data_shape[axis]);
    tuples.index_strides.push_back(0);
    tuples.data_strides.push_back(data_strides[axis]);
  }
  for (size_t i = 0; i < length; ++i) {
    tuples.tuple_strides.push_back(data_strides[batch_dims + i]);
    tuples.bounds.push_back(data_shape[batch_dims + i]);
    tuples.checks.push_back({.value = indices,
                             .bound = tuples.bounds.back(),
                             .first = static_cast<int64_t>(i),
                             .step = static_cast<int64_t>(length)});
  }
  return tuples;
}

tiling::Access IndexTuples::place_in_data(const Movement& movement, ir::ValueId indices) const {
  tiling::Access place;
  place.strides = data_strides;
  for (size_t i = 0; i < tuple_strides.size(); ++i) {
    place.gathers.push_back(movement.gather_term(indices, static_cast<int64_t>(i), index_strides,
                                                 bounds[i], tuple_strides[i]));
  }
  return place;
}

}  // namespace tenon::kernels
