#include "kernels/cudnn/convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph_partitioner/ir/channels_last.h"

namespace tenon::cudnn {
namespace {

bool has_input(const ir::Node& node, size_t index) {
  return index < node.inputs.size() && node.inputs[index] != ir::kNoValue;
}

Support takes_types(const ir::Graph& graph, const ir::Node& node) {
  const DType dtype = graph.value(node.input(0)).dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    return Support::no(fmt::format("cuDNN convolves f32, f16 and bf16, not {}", name(dtype)));
  }
  for (const ir::ValueId id : node.inputs) {
    if (id == ir::kNoValue || graph.value(id).dtype == dtype) continue;
    return Support::no("its inputs have different types");
  }
  return Support::yes();
}

Support takes_filter(const ir::Graph& graph, const ir::Node& node) {
  Shape x = *graph.value(node.input(0)).shape;
  const Shape& w = *graph.value(node.input(1)).shape;
  if (node.is(ir::kChannelsLastConv)) x = ir::permuted(x, ir::to_channels_first(x.size()));
  if (!is_static(w)) return Support::no("the sizes of the filter are not known before Run");
  if (w.size() != x.size() || !x[1].is_constant()) {
    return Support::no("the channels are not known before Run");
  }
  const std::vector<int64_t> filter = static_dims(w);
  const int64_t groups = node.integer("group", 1);
  const int64_t read = node.is("ConvTranspose") ? filter[0] : filter[1] * groups;
  if (groups < 1 || filter[0] % groups != 0 || x[1].value() != read) {
    return Support::no(
        fmt::format("{} groups do not fit {} and {} channels", groups, x[1].value(), filter[0]));
  }
  const std::vector<int64_t> named = node.integers("kernel_shape");
  if (!named.empty() && !std::equal(named.begin(), named.end(), filter.begin() + 2, filter.end())) {
    return Support::no("kernel_shape contradicts the filter");
  }
  return Support::yes();
}

// What cuDNN has no name for: normalize() makes other nodes of it.
Support is_plain_transposed(const ir::Node& node, const WindowForm& window) {
  const std::vector<int64_t> added = node.integers("output_padding");
  if (has_input(node, 2) || node.has("output_shape") || window.auto_pad != "NOTSET" ||
      window.pads_before != window.pads_after || added.size() > window.strides.size()) {
    return Support::no("a transposed convolution is not in its plain form");
  }
  for (size_t i = 0; i < added.size(); ++i) {
    const size_t from_last = added.size() - i;
    if (added[i] < 0 || added[i] >= window.strides[window.strides.size() - from_last]) {
      return Support::no("output_padding is no less than a stride");
    }
  }
  return Support::yes();
}

}  // namespace

ConvolutionAnswer convolution_of(const ir::Graph& graph, const ir::Node& node) {
  if (Support answer = takes_types(graph, node); !answer) return {std::move(answer), {}};
  if (Support answer = takes_filter(graph, node); !answer) return {std::move(answer), {}};
  Convolution made;
  made.dtype = graph.value(node.input(0)).dtype;
  made.filter = static_dims(*graph.value(node.input(1)).shape);
  made.channels_last = node.is(ir::kChannelsLastConv);
  made.transposed = node.is("ConvTranspose");
  made.has_bias = has_input(node, 2);
  made.has_summand = has_input(node, 3);
  const std::string activation = node.text("activation", "");
  made.has_relu = activation == "Relu";
  if (!activation.empty() && !made.has_relu) {
    return {Support::no(fmt::format("cuDNN is not asked to fuse {}", activation)), {}};
  }
  if (made.has_summand && *graph.value(node.input(3)).shape != *graph.value(node.output(0)).shape) {
    return {Support::no("what is added has another shape than the result"), {}};
  }
  WindowAnswer window = window_of(node, {made.filter.begin() + 2, made.filter.end()});
  if (window.support && made.transposed) window.support = is_plain_transposed(node, window.form);
  made.rank = made.filter.size();
  made.filter = with_two_spatial(made.filter);
  made.window = std::move(window.form);
  return {std::move(window.support), std::move(made)};
}

// The order in which cuDNN's compiled engines know a sum behind a convolution: what is added, the
// bias, the Relu.
Graph Convolution::graph(std::span<const int64_t> x_dims, std::span<const int64_t> y_dims) const {
  const std::vector<int64_t> x_sizes = in_onnx_order(x_dims, channels_last);
  const std::vector<int64_t> y_sizes = in_onnx_order(y_dims, channels_last);
  Graph made;
  const size_t x = made.add({dtype, x_sizes, false, channels_last});
  const size_t w = made.add({dtype, filter, false, channels_last});
  std::optional<size_t> summand, bias;
  if (has_summand) summand = made.add({dtype, y_sizes, false, channels_last});
  if (has_bias) {
    std::vector<int64_t> channels(y_sizes.size(), 1);
    channels[1] = y_sizes[1];
    bias = made.add({dtype, channels, false, channels_last});
  }
  const size_t y = made.add({dtype, y_sizes, false, channels_last});
  const size_t steps = 1 + (has_summand ? 1 : 0) + (has_bias ? 1 : 0) + (has_relu ? 1 : 0);
  const auto result = [&] {
    return made.steps.size() + 1 == steps ? y
                                          : made.add({DType::kF32, y_sizes, true, channels_last});
  };
  size_t last = result();
  const Window resolved =
      transposed ? resolve(window, y_sizes, x_sizes) : resolve(window, x_sizes, y_sizes);
  made.steps.emplace_back(ConvolutionStep{x, w, last, resolved, window.dilations, transposed});
  for (const std::optional<size_t>& added : {summand, bias}) {
    if (!added) continue;
    const size_t sum = result();
    made.steps.emplace_back(PointwiseStep{kAdd, last, added, sum});
    last = sum;
  }
  if (has_relu) made.steps.emplace_back(PointwiseStep{kRelu, last, std::nullopt, y});
  return made;
}

}  // namespace tenon::cudnn
