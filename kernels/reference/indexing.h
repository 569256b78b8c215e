// Row-major index arithmetic that every family of ops shares.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/reference/tensor.h"

namespace tenon::kernels::reference {

using Index = std::vector<int64_t>;
using Dims = std::vector<int64_t>;

Dims row_major_strides(const Dims& dims);
// Calls fn(index, flat) for every element in row-major order.
void for_each_index(const Dims& dims, const std::function<void(const Index&, int64_t)>& fn);
int64_t flat_index(const Dims& dims, const Index& index);

// Numpy's rule; throws UserError where two dims neither match nor are 1.
Dims broadcast_dims(const Dims& a, const Dims& b);
// Where the element of a tensor of `dims` stands that broadcasting reads at `index`.
int64_t broadcast_index(const Dims& dims, const Index& index);

// Negative axes count from the end; throws UserError out of range.
size_t normal_axis(int64_t axis, size_t rank);

// The tensor as [outer, size, inner] around one axis (or a run of axes).
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
  int64_t at(int64_t o, int64_t i, int64_t n) const { return (o * size + i) * inner + n; }
};
AxisView axis_view(const Dims& dims, size_t axis);
AxisView trailing_view(const Dims& dims, size_t first_axis);  // inner = 1

// out[index] = in[source(index)], or `otherwise` where source gives nothing.
ReferenceTensor remap(const ReferenceTensor& in, Dims out_dims,
                      const std::function<std::optional<int64_t>(const Index&)>& source,
                      double otherwise = 0);

}  // namespace tenon::kernels::reference
