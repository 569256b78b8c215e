#include "kernels/reference/indexing.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace tenon::kernels::reference {

Dims row_major_strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

void for_each_index(const Dims& dims, const std::function<void(const Index&, int64_t)>& fn) {
  const int64_t count = element_count(dims);
  Index index(dims.size(), 0);
  for (int64_t flat = 0; flat < count; ++flat) {
    fn(index, flat);
    for (size_t axis = dims.size(); axis-- > 0;) {
      if (++index[axis] < dims[axis]) break;
      index[axis] = 0;
    }
  }
}

int64_t flat_index(const Dims& dims, const Index& index) {
  int64_t flat = 0;
  for (size_t i = 0; i < dims.size(); ++i) flat = flat * dims[i] + index[i];
  return flat;
}

Dims broadcast_dims(const Dims& a, const Dims& b) {
  const size_t rank = std::max(a.size(), b.size());
  Dims result(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t left = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t right = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (left != right && left != 1 && right != 1) {
      throw UserError(fmt::format("shapes {} and {} do not broadcast", a, b));
    }
    result[rank - 1 - i] = left == 1 ? right : left;
  }
  return result;
}

int64_t broadcast_index(const Dims& dims, const Index& index) {
  int64_t flat = 0;
  const size_t skipped = index.size() - dims.size();
  for (size_t i = 0; i < dims.size(); ++i) {
    flat = flat * dims[i] + (dims[i] == 1 ? 0 : index[skipped + i]);
  }
  return flat;
}

size_t normal_axis(int64_t axis, size_t rank) {
  const auto limit = static_cast<int64_t>(rank);
  if (axis < -limit || axis >= std::max<int64_t>(limit, 1)) {
    throw UserError(fmt::format("axis {} is out of range for rank {}", axis, rank));
  }
  return static_cast<size_t>(axis < 0 ? axis + limit : axis);
}

AxisView axis_view(const Dims& dims, size_t axis) {
  AxisView view;
  for (size_t i = 0; i < dims.size(); ++i) {
    (i < axis ? view.outer : i == axis ? view.size : view.inner) *= dims[i];
  }
  return view;
}

AxisView trailing_view(const Dims& dims, size_t first_axis) {
  AxisView view;
  for (size_t i = 0; i < dims.size(); ++i) (i < first_axis ? view.outer : view.size) *= dims[i];
  return view;
}

ReferenceTensor remap(const ReferenceTensor& in, Dims out_dims,
                      const std::function<std::optional<int64_t>(const Index&)>& source,
                      double otherwise) {
  ReferenceTensor out = ReferenceTensor::zeros(in.dtype, std::move(out_dims));
  for_each_index(out.dims, [&](const Index& index, int64_t flat) {
    if (const std::optional<int64_t> from = source(index)) {
      out.copy_element(flat, in, *from);
    } else {
      out.set(flat, otherwise);
    }
  });
  return out;
}

}  // namespace tenon::kernels::reference
