// Convolution and pooling, tap by tap.
#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "graph_partitioner/ir/channels_last.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

// One entry per spatial dim.
struct Windows {
  Dims kernel, strides, dilations, pads;
  std::string auto_pad;
  bool ceils = false;
};

// As declared, else as strides and pads make them.
Dims result_dims(const Call& call, int64_t channels, const Dims& kernel) {
  if (const auto declared = call.output_dims(0)) {
    if (!call.node.is(ir::kChannelsLastConv)) return *declared;
    return ir::permuted(*declared, ir::to_channels_first(declared->size()));
  }
  const bool ceils = call.node.integer("ceil_mode", 0) != 0;
  const Dims& x = call.input(0).dims;
  Dims strides = call.node.integers("strides"), dilations = call.node.integers("dilations");
  Dims pads = call.node.integers("pads");
  const std::string auto_pad = call.node.text("auto_pad", "NOTSET");
  strides.resize(kernel.size(), 1);
  dilations.resize(kernel.size(), 1);
  if (auto_pad == "VALID") pads.clear();
  pads.resize(2 * kernel.size(), 0);
  Dims dims = {x[0], channels};
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t reach = dilations[i] * (kernel[i] - 1) + 1;
    const int64_t padded = x[2 + i] + pads[i] + pads[kernel.size() + i];
    if (auto_pad.starts_with("SAME")) {
      dims.push_back((x[2 + i] + strides[i] - 1) / strides[i]);
      continue;
    }
    dims.push_back((padded - reach + (ceils ? strides[i] - 1 : 0)) / strides[i] + 1);
    // No window begins in the pads behind.
    if (ceils && (dims.back() - 1) * strides[i] >= x[2 + i] + pads[i]) --dims.back();
  }
  return dims;
}

Windows windows_of(const Call& call, Dims kernel, const Dims& out) {
  const Dims& x = call.input(0).dims;
  const size_t rank = kernel.size();
  Windows made{std::move(kernel),
               call.node.integers("strides"),
               call.node.integers("dilations"),
               call.node.integers("pads"),
               call.node.text("auto_pad", "NOTSET"),
               call.node.integer("ceil_mode", 0) != 0};
  if (made.strides.empty()) made.strides.assign(rank, 1);
  if (made.dilations.empty()) made.dilations.assign(rank, 1);
  if (made.pads.empty() || made.auto_pad == "VALID") made.pads.assign(2 * rank, 0);
  if (!made.auto_pad.starts_with("SAME")) return made;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t covered =
        (out[2 + i] - 1) * made.strides[i] + made.dilations[i] * (made.kernel[i] - 1) + 1;
    const int64_t total = std::max<int64_t>(covered - x[2 + i], 0);
    made.pads[i] = made.auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    made.pads[rank + i] = total - made.pads[i];
  }
  return made;
}

// Calls fn(tap, place in x) for the taps of the window at `out` that lie inside x; how many are
// counted with pads: not those that ceil_mode reaches behind them.
int64_t for_each_tap(const Windows& windows, const Dims& x, const Index& out,
                     const std::function<void(const Index& tap, const Index& place)>& fn) {
  int64_t padded = 0;
  for_each_index(windows.kernel, [&](const Index& tap, int64_t) {
    bool inside = true, in_pads = true;
    Index place;
    for (size_t i = 0; i < tap.size(); ++i) {
      const int64_t at =
          out[2 + i] * windows.strides[i] + tap[i] * windows.dilations[i] - windows.pads[i];
      inside = inside && at >= 0 && at < x[2 + i];
      in_pads = in_pads && (!windows.ceils || at < x[2 + i] + windows.pads[tap.size() + i]);
      place.push_back(at);
    }
    padded += in_pads ? 1 : 0;
    if (inside) fn(tap, place);
  });
  return padded;
}

Index joined(int64_t first, int64_t second, const Index& rest) {
  Index index = {first, second};
  index.insert(index.end(), rest.begin(), rest.end());
  return index;
}

// Inputs x, w, bias, something to add; a Relu behind.
Outputs convolution(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const ReferenceTensor& w = call.input(1);
  const std::string activation = call.node.text("activation", "");
  if (!activation.empty() && activation != "Relu") throw UserError("no activation " + activation);
  const Dims kernel(w.dims.begin() + 2, w.dims.end());
  ReferenceTensor y =
      ReferenceTensor::zeros(call.output_type(), result_dims(call, w.dims[0], kernel));
  const Windows windows = windows_of(call, kernel, y.dims);
  const int64_t per_group = w.dims[0] / call.node.integer("group", 1), channels = w.dims[1];
  const Dims x_strides = row_major_strides(x.dims), w_strides = row_major_strides(w.dims);
  for_each_index(y.dims, [&](const Index& out, int64_t flat) {
    double sum = call.has(2) ? call.input(2).number(out[1]) : 0;
    const int64_t first = out[1] / per_group * channels;
    for_each_tap(windows, x.dims, out, [&](const Index& tap, const Index& place) {
      const int64_t from = flat_index(x.dims, joined(out[0], first, place));
      const int64_t weight = flat_index(w.dims, joined(out[1], 0, tap));
      for (int64_t c = 0; c < channels; ++c) {
        sum += x.number(from + c * x_strides[1]) * w.number(weight + c * w_strides[1]);
      }
    });
    if (call.has(3)) sum += call.input(3).number(flat);
    y.set(flat, activation.empty() ? sum : std::max(sum, 0.0));
  });
  return {std::move(y)};
}

// What the attributes of a ConvTranspose come to: elements that are cut off in front, and dims.
struct Transposed {
  Dims strides, dilations, pads, dims;
};

Transposed transposed_of(const Call& call, const Dims& kernel, int64_t channels) {
  const Dims &x = call.input(0).dims, wanted = call.node.integers("output_shape");
  const size_t rank = kernel.size();
  Transposed made{call.node.integers("strides"),
                  call.node.integers("dilations"),
                  call.node.integers("pads"),
                  {x[0], channels}};
  Dims added = call.node.integers("output_padding");
  const std::string auto_pad = call.node.text("auto_pad", "NOTSET");
  made.strides.resize(rank, 1);
  made.dilations.resize(rank, 1);
  added.resize(rank, 0);
  if (auto_pad == "VALID") made.pads.clear();
  made.pads.resize(2 * rank, 0);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t stride = made.strides[i], reach = made.dilations[i] * (kernel[i] - 1) + 1;
    const int64_t all = (x[2 + i] - 1) * stride + reach + added[i];
    if (!wanted.empty() || auto_pad.starts_with("SAME")) {
      const int64_t goal = wanted.empty() ? x[2 + i] * stride : wanted[i];
      const int64_t total = std::max<int64_t>(all - goal, 0);
      made.pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      made.pads[rank + i] = total - made.pads[i];
    }
    const int64_t left = all - made.pads[i] - made.pads[rank + i];
    made.dims.push_back(wanted.empty() ? left : wanted[i]);
  }
  return made;
}

// Inputs x, w [C, M/group, k…], bias: each element of x adds a window to the result.
Outputs transposed_convolution(const Call& call) {
  const ReferenceTensor &x = call.input(0), &w = call.input(1);
  const Dims kernel(w.dims.begin() + 2, w.dims.end());
  const int64_t groups = call.node.integer("group", 1), made = w.dims[1];
  const Transposed form = transposed_of(call, kernel, made * groups);
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(), form.dims);
  for_each_index(y.dims, [&](const Index& out, int64_t flat) {
    if (call.has(2)) y.set(flat, call.input(2).number(out[1]));
  });
  Dims taps = kernel;
  taps.insert(taps.begin(), made);
  for_each_index(x.dims, [&](const Index& from, int64_t flat) {
    for_each_index(taps, [&](const Index& tap, int64_t) {
      Index to = {from[0], from[1] / (x.dims[1] / groups) * made + tap[0]};
      bool inside = true;
      for (size_t i = 0; i < kernel.size(); ++i) {
        to.push_back(from[2 + i] * form.strides[i] + tap[1 + i] * form.dilations[i] - form.pads[i]);
        inside = inside && to.back() >= 0 && to.back() < y.dims[2 + i];
      }
      if (!inside) return;
      const int64_t at = flat_index(y.dims, to);
      const double weight =
          w.number(flat_index(w.dims, joined(from[1], tap[0], {tap.begin() + 1, tap.end()})));
      y.set(at, y.number(at) + x.number(flat) * weight);
    });
  });
  return {std::move(y)};
}

// Where a maximum stands in the whole of x; storage_order 1: the first spatial dim innermost.
int64_t index_of(const Call& call, Index place) {
  Dims dims = call.input(0).dims;
  if (call.node.integer("storage_order", 0) != 0) {
    std::reverse(dims.begin() + 2, dims.end());
    std::reverse(place.begin() + 2, place.end());
  }
  return flat_index(dims, place);
}

Outputs pooling(const Call& call, bool maximum) {
  const ReferenceTensor& x = call.input(0);
  const Dims kernel = call.node.integers("kernel_shape");
  ReferenceTensor y =
      ReferenceTensor::zeros(call.output_type(), result_dims(call, x.dims[1], kernel));
  ReferenceTensor indices = ReferenceTensor::zeros(DType::kI64, y.dims);
  const Windows windows = windows_of(call, kernel, y.dims);
  const bool counts_pads = call.node.integer("count_include_pad", 0) != 0;
  for_each_index(y.dims, [&](const Index& out, int64_t flat) {
    double sum = 0, most = -std::numeric_limits<double>::infinity();
    int64_t taps = 0;
    const int64_t padded =
        for_each_tap(windows, x.dims, out, [&](const Index&, const Index& place) {
          const double value = x.number(flat_index(x.dims, joined(out[0], out[1], place)));
          sum += value;
          ++taps;
          if (value <= most) return;
          most = value;
          indices.set_integer(flat, index_of(call, joined(out[0], out[1], place)));
        });
    y.set(flat, maximum ? most : sum / static_cast<double>(counts_pads ? padded : taps));
  });
  if (!call.wants(1)) return {std::move(y)};
  return {std::move(y), std::move(indices)};
}

Outputs max_pool(const Call& call) { return pooling(call, true); }
Outputs average_pool(const Call& call) { return pooling(call, false); }

// One window over everything.
Outputs global_average_pool(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  Dims dims(x.dims.size(), 1);
  std::copy_n(x.dims.begin(), 2, dims.begin());
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(), dims);
  const int64_t pixels = x.elements() / std::max<int64_t>(y.elements(), 1);
  for (int64_t i = 0; i < y.elements(); ++i) {
    double sum = 0;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) sum += x.number(i * pixels + pixel);
    y.set(i, sum / static_cast<double>(pixels));
  }
  return {std::move(y)};
}

ReferenceTensor turned(const ReferenceTensor& from, const Dims& perm) {
  ReferenceTensor made = ReferenceTensor::zeros(from.dtype, ir::permuted(from.dims, perm));
  for_each_index(from.dims, [&](const Index& index, int64_t flat) {
    made.set(flat_index(made.dims, ir::permuted(index, perm)), from.number(flat));
  });
  return made;
}

// x and what is added have their channels last, and so has the result.
Outputs channels_last_convolution(const Call& call) {
  Call first{call.graph, call.node, call.symbols, call.round_values, call.inputs};
  std::vector<ReferenceTensor> kept;
  kept.reserve(call.inputs.size());
  for (const size_t index : {0, 3}) {
    if (!call.has(index)) continue;
    kept.push_back(turned(call.input(index), ir::to_channels_first(call.input(index).dims.size())));
    first.inputs[index] = &kept.back();
  }
  Outputs outputs = convolution(first);
  outputs[0] = turned(outputs[0], ir::to_channels_last(outputs[0].dims.size()));
  return outputs;
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"AveragePool", average_pool},
    {"Conv", convolution},
    {"ConvTranspose", transposed_convolution},
    {"GlobalAveragePool", global_average_pool},
    {"MaxPool", max_pool},
    {"com.microsoft::FusedConv", convolution},
    {ir::kChannelsLastConv, channels_last_convolution},
});

}  // namespace

std::span<const OpEntry> window_ops() { return kOps; }

}  // namespace tenon::kernels::reference
