#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

Outputs identity(const Call& call) { return {call.input(0)}; }

// Inference keeps every element.
Outputs dropout(const Call& call) {
  ReferenceTensor mask = ReferenceTensor::zeros(DType::kBool, call.input(0).dims);
  std::fill(mask.integers.begin(), mask.integers.end(), 1);
  return {call.input(0), std::move(mask)};
}

Outputs transpose(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  std::vector<int64_t> perm = call.node.integers("perm");
  if (perm.empty()) {
    for (size_t i = x.dims.size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  }
  Dims dims;
  for (const int64_t axis : perm) dims.push_back(x.dims.at(static_cast<size_t>(axis)));
  return {remap(x, dims, [&](const Index& index) {
    Index from(index.size());
    for (size_t i = 0; i < perm.size(); ++i) from[static_cast<size_t>(perm[i])] = index[i];
    return flat_index(x.dims, from);
  })};
}

// The normal form: starts are dims, sizes are the output's.
Outputs slice_primitive(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const auto* starts = std::get_if<std::vector<std::string>>(&call.node.attributes.at("starts"));
  const std::vector<int64_t> steps = call.node.integers("steps");
  if (!starts || starts->size() != x.dims.size())
    throw UserError("tenon::Slice needs a start per axis");
  Dims first;
  for (const std::string& text : *starts) first.push_back(call.value_of(Dim::parse(text)));
  return {remap(x, call.required_output_dims(), [&](const Index& index) {
    Index from(index.size());
    for (size_t i = 0; i < index.size(); ++i) {
      from[i] = first[i] + index[i] * (steps.empty() ? 1 : steps[i]);
      if (from[i] < 0 || from[i] >= x.dims[i])
        throw InternalError("tenon::Slice reads out of range");
    }
    return flat_index(x.dims, from);
  })};
}

Outputs slice(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const std::vector<int64_t> starts = *call.integers(1, "starts"), ends = *call.integers(2, "ends");
  const auto axes = call.integers(3, "axes"), steps = call.integers(4, "steps");
  Dims first(x.dims.size(), 0), stride(x.dims.size(), 1), dims = x.dims;
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t axis = axes ? normal_axis((*axes)[i], x.dims.size()) : i;
    const int64_t size = x.dims[axis], step = steps ? (*steps)[i] : 1;
    if (size == 0) continue;
    const auto clamp = [&](int64_t at, int64_t low, int64_t high) {
      return std::clamp(at < 0 ? at + size : at, low, high);
    };
    const int64_t start = step > 0 ? clamp(starts[i], 0, size) : clamp(starts[i], 0, size - 1);
    const int64_t end = step > 0 ? clamp(ends[i], 0, size) : clamp(ends[i], -1, size - 1);
    first[axis] = start;
    stride[axis] = step;
    const int64_t distance = step > 0 ? end - start : start - end;
    const int64_t width = step > 0 ? step : -step;
    dims[axis] = std::max<int64_t>(0, (distance + width - 1) / width);
  }
  return {remap(x, dims, [&](const Index& index) {
    Index from(index.size());
    for (size_t i = 0; i < index.size(); ++i) from[i] = first[i] + index[i] * stride[i];
    return flat_index(x.dims, from);
  })};
}

Outputs expand(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const Dims wanted = call.has(1) ? Dims(call.input(1).integers) : call.required_output_dims();
  return {remap(x, broadcast_dims(x.dims, wanted),
                [&](const Index& index) { return broadcast_index(x.dims, index); })};
}

Outputs block_expand(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", 0), x.dims.size());
  const int64_t block = call.node.integer("block", 1);
  return {remap(x, call.required_output_dims(), [&](const Index& index) {
    Index from = index;
    from[axis] /= block;
    return flat_index(x.dims, from);
  })};
}

Outputs pad_primitive(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const auto* begins =
      std::get_if<std::vector<std::string>>(&call.node.attributes.at("pads_begin"));
  if (!begins || begins->size() != x.dims.size())
    throw UserError("tenon::Pad needs a pad per axis");
  Dims before;
  for (const std::string& text : *begins) before.push_back(call.value_of(Dim::parse(text)));
  const auto source = [&](const Index& index) -> std::optional<int64_t> {
    Index from(index.size());
    for (size_t i = 0; i < index.size(); ++i) {
      from[i] = index[i] - before[i];
      if (from[i] < 0 || from[i] >= x.dims[i]) return std::nullopt;
    }
    return flat_index(x.dims, from);
  };
  return {remap(x, call.required_output_dims(), source, call.scalar(1, 0))};
}

// Where a padded position reads, by Pad's modes; nothing: the constant.
std::optional<int64_t> padded_source(int64_t at, int64_t size, const std::string& mode) {
  if (at >= 0 && at < size) return at;
  if (mode == "constant") return std::nullopt;
  if (mode == "edge") return std::clamp<int64_t>(at, 0, size - 1);
  if (mode == "wrap") return (at % size + size) % size;
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1);  // reflect
  const int64_t inside = (at % period + period) % period;
  return inside < size ? inside : period - inside;
}

Outputs pad(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const std::vector<int64_t> pads = *call.integers(1, "pads");
  const std::string mode = call.node.text("mode", "constant");
  const double constant = call.has(2) ? call.input(2).number(0) : call.node.number("value", 0);
  const auto axes = call.has(3) ? std::optional(call.input(3).integers) : std::nullopt;
  const size_t count = pads.size() / 2;
  Dims before(x.dims.size(), 0), dims = x.dims;
  for (size_t i = 0; i < count; ++i) {
    const size_t axis = axes ? normal_axis((*axes)[i], x.dims.size()) : i;
    before[axis] = pads[i];
    dims[axis] += pads[i] + pads[count + i];
  }
  const auto source = [&](const Index& index) -> std::optional<int64_t> {
    Index from(index.size());
    for (size_t i = 0; i < index.size(); ++i) {
      const auto at = padded_source(index[i] - before[i], x.dims[i], mode);
      if (!at) return std::nullopt;
      from[i] = *at;
    }
    return flat_index(x.dims, from);
  };
  return {remap(x, dims, source, constant)};
}

ReferenceTensor with_dims(const ReferenceTensor& x, Dims dims) {
  if (element_count(dims) != x.elements()) {
    throw UserError(
        fmt::format("a reshape of {} elements gives {}", x.elements(), element_count(dims)));
  }
  ReferenceTensor y = x;
  y.dims = std::move(dims);
  return y;
}

Outputs reshape(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const auto asked = call.integers(1, "shape");
  if (!asked) return {with_dims(x, call.required_output_dims())};
  Dims dims = *asked;
  const bool zero_is_zero = call.node.integer("allowzero", 0) != 0;
  // Dims that are copied cancel, so that an empty tensor's -1 is known too.
  int64_t known = 1, left = 1;
  for (size_t i = 0; i < std::max(dims.size(), x.dims.size()); ++i) {
    const bool copied = i < dims.size() && dims[i] == 0 && !zero_is_zero;
    if (copied) dims[i] = x.dims.at(i);
    if (!copied && i < dims.size() && dims[i] != -1) known *= dims[i];
    if (!copied && i < x.dims.size()) left *= x.dims[i];
  }
  for (int64_t& dim : dims) {
    if (dim == -1) dim = known == 0 ? 0 : left / known;
  }
  return {with_dims(x, dims)};
}

Outputs squeeze(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const auto axes = call.integers(1, "axes");
  std::vector<bool> drop(x.dims.size(), false);
  for (size_t i = 0; i < x.dims.size(); ++i) drop[i] = !axes && x.dims[i] == 1;
  if (axes) {
    for (const int64_t axis : *axes) drop[normal_axis(axis, x.dims.size())] = true;
  }
  Dims dims;
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (!drop[i]) dims.push_back(x.dims[i]);
  }
  return {with_dims(x, dims)};
}

Outputs unsqueeze(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const std::vector<int64_t> axes = *call.integers(1, "axes");
  const size_t rank = x.dims.size() + axes.size();
  std::vector<bool> added(rank, false);
  for (const int64_t axis : axes) added[normal_axis(axis, rank)] = true;
  Dims dims;
  size_t next = 0;
  for (size_t i = 0; i < rank; ++i) dims.push_back(added[i] ? 1 : x.dims[next++]);
  return {with_dims(x, dims)};
}

Outputs flatten(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  int64_t axis = call.node.integer("axis", 1);
  if (axis < 0) axis += static_cast<int64_t>(x.dims.size());
  const AxisView view = trailing_view(x.dims, static_cast<size_t>(axis));
  return {with_dims(x, {view.outer, view.size})};
}

Outputs concat(const Call& call) {
  const size_t axis = normal_axis(call.node.integer("axis", 0), call.input(0).dims.size());
  Dims dims = call.input(0).dims;
  dims[axis] = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) dims[axis] += call.input(i).dims.at(axis);
  ReferenceTensor y = ReferenceTensor::zeros(call.input(0).dtype, dims);
  int64_t offset = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ReferenceTensor& part = call.input(i);
    for_each_index(part.dims, [&](const Index& index, int64_t flat) {
      Index to = index;
      to[axis] += offset;
      y.copy_element(flat_index(dims, to), part, flat);
    });
    offset += part.dims[axis];
  }
  return {std::move(y)};
}

Outputs split(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", 0), x.dims.size());
  const auto parts = static_cast<int64_t>(call.node.outputs.size());
  std::vector<int64_t> sizes = call.integers(1, "split").value_or(std::vector<int64_t>{});
  if (sizes.empty()) {
    const int64_t size = (x.dims[axis] + parts - 1) / parts;
    for (int64_t left = x.dims[axis], i = 0; i < parts; ++i, left -= size) {
      sizes.push_back(std::clamp<int64_t>(left, 0, size));
    }
  }
  Outputs outputs;
  int64_t offset = 0;
  for (const int64_t size : sizes) {
    Dims dims = x.dims;
    dims[axis] = size;
    outputs.push_back(remap(x, dims, [&](const Index& index) {
      Index from = index;
      from[axis] += offset;
      return flat_index(x.dims, from);
    }));
    offset += size;
  }
  return outputs;
}

Outputs tile(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  Dims dims = x.dims;
  for (size_t i = 0; i < dims.size(); ++i) dims[i] *= call.input(1).integers.at(i);
  return {remap(x, dims, [&](const Index& index) {
    Index from = index;
    for (size_t i = 0; i < from.size(); ++i) from[i] %= x.dims[i];
    return flat_index(x.dims, from);
  })};
}

Outputs depth_to_space(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const int64_t block = call.node.integer("blocksize", 1);
  const bool channel_first = call.node.text("mode", "DCR") == "CRD";
  const int64_t channels = x.dims[1] / (block * block);
  return {
      remap(x, {x.dims[0], channels, x.dims[2] * block, x.dims[3] * block}, [&](const Index& i) {
        const int64_t part = i[2] % block * block + i[3] % block;
        const int64_t channel =
            channel_first ? i[1] * block * block + part : part * channels + i[1];
        return flat_index(x.dims, {i[0], channel, i[2] / block, i[3] / block});
      })};
}

Outputs space_to_depth(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const int64_t block = call.node.integer("blocksize", 1), channels = x.dims[1];
  const Dims dims{x.dims[0], channels * block * block, x.dims[2] / block, x.dims[3] / block};
  return {remap(x, dims, [&](const Index& i) {
    const int64_t part = i[1] / channels;
    return flat_index(
        x.dims, {i[0], i[1] % channels, i[2] * block + part / block, i[3] * block + part % block});
  })};
}

Outputs trilu(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const auto diagonal = static_cast<int64_t>(call.scalar(1, 0));
  const bool upper = call.node.integer("upper", 1) != 0;
  const size_t rank = x.dims.size();
  return {remap(x, x.dims, [&](const Index& index) -> std::optional<int64_t> {
    const int64_t distance = index[rank - 1] - index[rank - 2] - diagonal;
    const bool keep = upper ? distance >= 0 : distance <= 0;
    return keep ? std::optional(flat_index(x.dims, index)) : std::nullopt;
  })};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"Identity", identity},
    {"Dropout", dropout},
    {"Transpose", transpose},
    {"tenon::Slice", slice_primitive},
    {"Slice", slice},
    {"Expand", expand},
    {"tenon::BlockExpand", block_expand},
    {"tenon::Pad", pad_primitive},
    {"Pad", pad},
    {"Reshape", reshape},
    {"Squeeze", squeeze},
    {"Unsqueeze", unsqueeze},
    {"Flatten", flatten},
    {"Concat", concat},
    {"Split", split},
    {"Tile", tile},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"Trilu", trilu},
});

}  // namespace

std::span<const OpEntry> movement_ops() { return kOps; }

}  // namespace tenon::kernels::reference
