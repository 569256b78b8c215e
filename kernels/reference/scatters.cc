#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

int64_t checked_index(int64_t index, int64_t size) {
  if (index < -size || index >= size) {
    throw UserError(fmt::format("index {} is out of range for size {}", index, size));
  }
  return index < 0 ? index + size : index;
}

int64_t index_at(const ReferenceTensor& indices, int64_t flat, int64_t size) {
  return checked_index(indices.integers.at(static_cast<size_t>(flat)), size);
}

Dims gathered_dims(const Dims& data, size_t axis, const Dims& indices) {
  Dims dims(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(axis));
  dims.insert(dims.end(), indices.begin(), indices.end());
  dims.insert(dims.end(), data.begin() + static_cast<std::ptrdiff_t>(axis) + 1, data.end());
  return dims;
}

// The position in `data` that a gather along `axis` reads for the result's `index`.
Index gathered_index(const Index& index, const Dims& data, size_t axis,
                     const ReferenceTensor& indices) {
  const size_t index_rank = indices.dims.size();
  Index pick(index.begin() + static_cast<std::ptrdiff_t>(axis),
             index.begin() + static_cast<std::ptrdiff_t>(axis + index_rank));
  Index from(index.begin(), index.begin() + static_cast<std::ptrdiff_t>(axis));
  from.push_back(index_at(indices, flat_index(indices.dims, pick), data[axis]));
  from.insert(from.end(), index.begin() + static_cast<std::ptrdiff_t>(axis + index_rank),
              index.end());
  return from;
}

Outputs gather(const Call& call) {
  const ReferenceTensor &data = call.input(0), &indices = call.input(1);
  const size_t axis = normal_axis(call.node.integer("axis", 0), data.dims.size());
  return {remap(data, gathered_dims(data.dims, axis, indices.dims), [&](const Index& index) {
    return flat_index(data.dims, gathered_index(index, data.dims, axis, indices));
  })};
}

// tenon::Pick: an axis is picked along, the others broadcast with the indices.
Outputs pick(const Call& call) {
  const ReferenceTensor &data = call.input(0), &indices = call.input(1);
  const auto axis = static_cast<std::ptrdiff_t>(call.node.integer("axis", 0));
  Dims rest = data.dims;
  rest.erase(rest.begin() + axis);
  return {remap(data, broadcast_dims(rest, indices.dims), [&](const Index& index) {
    const int64_t at = broadcast_index(indices.dims, index);
    Index from;
    for (size_t i = 0; i < rest.size(); ++i) from.push_back(rest[i] == 1 ? 0 : index[i]);
    from.insert(from.begin() + axis, index_at(indices, at, data.dims[static_cast<size_t>(axis)]));
    return flat_index(data.dims, from);
  })};
}

// Data packed in uint8 keeps 8 / bits elements per byte along its last axis.
ReferenceTensor unpack(const ReferenceTensor& x, int64_t bits) {
  if (x.dtype != DType::kU8 || bits == 8) return x;
  const int64_t per_byte = 8 / bits;
  Dims dims = x.dims;
  dims.back() *= per_byte;
  ReferenceTensor y = ReferenceTensor::zeros(DType::kU8, dims);
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t byte = x.integers[static_cast<size_t>(i / per_byte)];
    y.set_integer(i, byte >> (i % per_byte * bits) & ((1 << bits) - 1));
  }
  return y;
}

Outputs gather_block_quantized(const Call& call) {
  const int64_t bits = call.node.integer("bits", 4), block = call.node.integer("block_size", 128);
  const bool packed = call.input(0).dtype == DType::kU8;
  const ReferenceTensor data = unpack(call.input(0), bits);
  const ReferenceTensor &indices = call.input(1), &scales = call.input(2);
  const ReferenceTensor zeros = call.has(3) ? unpack(call.input(3), bits) : ReferenceTensor{};
  const double default_zero = packed ? std::ldexp(1.0, static_cast<int>(bits) - 1) : 0;
  const size_t axis = normal_axis(call.node.integer("gather_axis", 0), data.dims.size());
  const size_t quantized = normal_axis(call.node.integer("quantize_axis", 1), data.dims.size());
  ReferenceTensor y =
      ReferenceTensor::zeros(scales.dtype, gathered_dims(data.dims, axis, indices.dims));
  for_each_index(y.dims, [&](const Index& index, int64_t flat) {
    Index from = gathered_index(index, data.dims, axis, indices);
    const double code = data.number(flat_index(data.dims, from));
    from[quantized] /= block;
    const double zero = call.has(3) ? zeros.number(flat_index(zeros.dims, from)) : default_zero;
    y.set(flat, (code - zero) * scales.number(flat_index(scales.dims, from)));
  });
  return {std::move(y)};
}

Outputs gather_elements(const Call& call) {
  const ReferenceTensor &data = call.input(0), &indices = call.input(1);
  const size_t axis = normal_axis(call.node.integer("axis", 0), data.dims.size());
  return {remap(data, indices.dims, [&](const Index& index) {
    Index from = index;
    from[axis] = index_at(indices, flat_index(indices.dims, index), data.dims[axis]);
    return flat_index(data.dims, from);
  })};
}

Outputs gather_nd(const Call& call) {
  const ReferenceTensor &data = call.input(0), &indices = call.input(1);
  const auto batch = static_cast<size_t>(call.node.integer("batch_dims", 0));
  const auto depth = static_cast<size_t>(indices.dims.back());
  const size_t lead = indices.dims.size() - 1;
  Dims dims(indices.dims.begin(), indices.dims.end() - 1);
  dims.insert(dims.end(), data.dims.begin() + static_cast<std::ptrdiff_t>(batch + depth),
              data.dims.end());
  return {remap(data, dims, [&](const Index& index) {
    Index pick(index.begin(), index.begin() + static_cast<std::ptrdiff_t>(lead));
    Index from(index.begin(), index.begin() + static_cast<std::ptrdiff_t>(batch));
    pick.push_back(0);
    for (size_t i = 0; i < depth; ++i) {
      pick.back() = static_cast<int64_t>(i);
      from.push_back(index_at(indices, flat_index(indices.dims, pick), data.dims[batch + i]));
    }
    from.insert(from.end(), index.begin() + static_cast<std::ptrdiff_t>(lead), index.end());
    return flat_index(data.dims, from);
  })};
}

// Writes one update into y by ScatterND's and ScatterElements' reductions.
void merge(ReferenceTensor& y, int64_t at, const ReferenceTensor& updates, int64_t from,
           const std::string& reduction) {
  if (reduction == "none") {
    y.copy_element(at, updates, from);
    return;
  }
  const double held = y.number(at), update = updates.number(from);
  y.set(at, reduction == "add"   ? held + update
            : reduction == "mul" ? held * update
            : reduction == "max" ? std::fmax(held, update)
                                 : std::fmin(held, update));
}

Outputs scatter_nd(const Call& call) {
  const ReferenceTensor &indices = call.input(1), &updates = call.input(2);
  ReferenceTensor y = call.input(0);
  const std::string reduction = call.node.text("reduction", "none");
  const int64_t depth = indices.dims.back();
  const int64_t slices = depth == 0 ? 1 : indices.elements() / depth;
  const int64_t slice = trailing_view(y.dims, static_cast<size_t>(depth)).size;
  for (int64_t s = 0; s < slices; ++s) {
    int64_t row = 0;
    for (int64_t i = 0; i < depth; ++i) {
      const int64_t size = y.dims[static_cast<size_t>(i)];
      row = row * size + index_at(indices, s * depth + i, size);
    }
    for (int64_t i = 0; i < slice; ++i)
      merge(y, row * slice + i, updates, s * slice + i, reduction);
  }
  return {std::move(y)};
}

Outputs scatter_elements(const Call& call) {
  const ReferenceTensor &indices = call.input(1), &updates = call.input(2);
  ReferenceTensor y = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", 0), y.dims.size());
  const std::string reduction = call.node.text("reduction", "none");
  for_each_index(indices.dims, [&](const Index& index, int64_t flat) {
    Index to = index;
    to[axis] = index_at(indices, flat, y.dims[axis]);
    merge(y, flat_index(y.dims, to), updates, flat, reduction);
  });
  return {std::move(y)};
}

Outputs tensor_scatter(const Call& call) {
  const ReferenceTensor& update = call.input(1);
  ReferenceTensor y = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", -2), y.dims.size());
  const bool circular = call.node.text("mode", "linear") == "circular";
  for_each_index(update.dims, [&](const Index& index, int64_t flat) {
    Index to = index;
    if (call.has(2)) to[axis] += call.input(2).integers.at(static_cast<size_t>(index[0]));
    to[axis] = circular ? to[axis] % y.dims[axis] : checked_index(to[axis], y.dims[axis]);
    y.copy_element(flat_index(y.dims, to), update, flat);
  });
  return {std::move(y)};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"Gather", gather},
    {ir::kPick, pick},
    {"com.microsoft::GatherBlockQuantized", gather_block_quantized},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"ScatterND", scatter_nd},
    {"ScatterElements", scatter_elements},
    {"TensorScatter", tensor_scatter},
});

}  // namespace

std::span<const OpEntry> scatter_ops() { return kOps; }

}  // namespace tenon::kernels::reference
