#include "kernels/cudnn/pooling.h"

#include <fmt/format.h>

#include <algorithm>

namespace tenon::cudnn {
namespace {

bool has_pads(const WindowForm& window) {
  const auto is_some = [](int64_t pad) { return pad != 0; };
  return window.auto_pad.starts_with("SAME") || std::ranges::any_of(window.pads_before, is_some) ||
         std::ranges::any_of(window.pads_after, is_some);
}

// A window may take what lies behind x and its pads where it is the only one on an image that is
// smaller than it. These sizes keep each window inside; nothing where it always is.
std::vector<kernels::SizeCheck> windows_inside(const WindowForm& window, const Shape& x,
                                               const Shape& y) {
  std::vector<kernels::SizeCheck> sizes;
  const size_t rank = window.kernel.size();
  for (size_t i = 0; i + 2 < y.size(); ++i) {
    const size_t from_last = i + 1, of_window = rank - from_last;
    const Dim padded =
        x[x.size() - from_last] + (window.pads_before[of_window] + window.pads_after[of_window]);
    const Dim inside = floor_div(padded - window.kernel[of_window], window.strides[of_window]) + 1;
    if (y[y.size() - from_last] == inside) continue;
    sizes.push_back({window.kernel[of_window], ir::Relation::kAtMost, padded});
  }
  return sizes;
}

}  // namespace

PoolingAnswer pooling_of(const ir::Graph& graph, const ir::Node& node) {
  const auto no = [](std::string why) { return PoolingAnswer{Support::no(std::move(why)), {}}; };
  Pooling made;
  made.dtype = graph.value(node.input(0)).dtype;
  if (made.dtype != DType::kF32 && made.dtype != DType::kF16 && made.dtype != DType::kBF16) {
    return no(fmt::format("cuDNN pools f32, f16 and bf16, not {}", name(made.dtype)));
  }
  if (node.outputs.size() > 1 && node.outputs[1] != ir::kNoValue) {
    return no("cuDNN is not asked for the indices of maxima");
  }
  const std::vector<int64_t> kernel = node.integers("kernel_shape");
  if (kernel.size() + 2 != graph.value(node.input(0)).shape->size()) {
    return no("kernel_shape has another rank than the input");
  }
  made.rank = kernel.size() + 2;
  WindowAnswer window = window_of(node, kernel);
  if (!window.support) return {std::move(window.support), {}};
  made.window = std::move(window.form);
  if (std::ranges::any_of(made.window.dilations, [](int64_t step) { return step != 1; })) {
    return no("cuDNN pools without dilations");
  }
  const bool counts_pads = node.integer("count_include_pad", 0) != 0;
  // ONNX counts the pads that it names, not what the last window reaches over the end.
  if (counts_pads && made.window.ceil_mode) return no("count_include_pad with ceil_mode");
  // Seen with 9.14: pads behind the end that differ from those before it are not counted.
  if (counts_pads && has_pads(made.window)) {
    return no("cuDNN does not count all pads as count_include_pad asks for");
  }
  std::vector<kernels::SizeCheck> sizes;
  if (counts_pads) {
    sizes = windows_inside(made.window, *graph.value(node.input(0)).shape,
                           *graph.value(node.output(0)).shape);
  }
  const auto never_holds = [](const kernels::SizeCheck& size) {
    return ir::decide(size.left, size.relation, size.right) == false;
  };
  if (std::ranges::any_of(sizes, never_holds)) {
    return no("cuDNN does not count what a window reaches over the end, as count_include_pad asks");
  }
  made.mode = node.is("MaxPool") ? kMaximum : counts_pads ? kAverageWithPads : kAverageWithoutPads;
  return {Support::yes(), std::move(made), std::move(sizes)};
}

Graph Pooling::graph(std::span<const int64_t> x_dims, std::span<const int64_t> y_dims) const {
  const std::vector<int64_t> x_sizes = with_two_spatial(x_dims), y_sizes = with_two_spatial(y_dims);
  Graph made;
  const size_t x = made.add({dtype, x_sizes}), y = made.add({dtype, y_sizes});
  made.steps.emplace_back(
      PoolingStep{mode, x, y, resolve(window, x_sizes, y_sizes), window.kernel});
  return made;
}

}  // namespace tenon::cudnn
