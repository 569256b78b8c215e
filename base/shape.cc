#include "base/shape.h"

#include <algorithm>

#include "base/error.h"

namespace tenon {

Dim element_count(const Shape& shape) {
  Dim count = 1;
  for (const Dim& dim : shape) count = count * dim;
  return count;
}

bool is_static(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return dim.is_constant(); });
}

std::vector<int64_t> static_dims(const Shape& shape) {
  std::vector<int64_t> dims;
  dims.reserve(shape.size());
  for (const Dim& dim : shape) dims.push_back(dim.value());
  return dims;
}

Shape make_shape(const std::vector<int64_t>& dims) { return Shape(dims.begin(), dims.end()); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size());
  Dim stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    // Nobody steps through a tensor without elements, but a stride of 0 would be a broadcast's.
    if (!shape[i].is(0)) stride = stride * shape[i];
  }
  return strides;
}

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size());
  const auto dim_from_right = [](const Shape& shape, size_t i) {
    return i < shape.size() ? shape[shape.size() - 1 - i] : Dim(1);
  };
  Shape result(rank);
  for (size_t i = 0; i < rank; ++i) {
    const Dim left = dim_from_right(a, i), right = dim_from_right(b, i);
    const bool clash = left.is_constant() && right.is_constant() && !left.is(1) && !right.is(1) &&
                       !(left == right);
    if (clash) return std::nullopt;
    result[rank - 1 - i] = broadcast(left, right);
  }
  return result;
}

std::string text(const Shape& shape) {
  std::string list;
  for (const Dim& dim : shape) list += (list.empty() ? "" : ",") + dim.text();
  return "[" + list + "]";
}

}  // namespace tenon
