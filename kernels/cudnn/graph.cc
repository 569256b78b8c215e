#include "kernels/cudnn/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "base/checked.h"

namespace tenon::cudnn {
namespace {

std::string_view name(PointwiseMode mode) {
  switch (mode) {
    case kAdd:
      return "add";
    case kMultiply:
      return "multiply";
    case kDivide:
      return "divide";
    case kSubtract:
      return "subtract";
    case kExp:
      return "exp";
    case kLog:
      return "log";
    case kRelu:
      return "relu";
    case kGreater:
      return "greater";
    case kGreaterEqual:
      return "greater_equal";
    case kLess:
      return "less";
    case kAnd:
      return "and";
    case kIndex:
      return "index";
    case kSelect:
      return "select";
  }
  return "";
}

std::string_view name(ResampleMode mode) {
  switch (mode) {
    case kAverageWithPads:
      return "average_with_pads";
    case kAverageWithoutPads:
      return "average";
    case kMaximum:
      return "maximum";
  }
  return "";
}

std::string text(const Window& window) {
  return fmt::format("pads {}..{} strides {}", window.pads_before, window.pads_after,
                     window.strides);
}

struct StepText {
  std::string operator()(const ConvolutionStep& step) const {
    return fmt::format("t{} = {}convolution(t{}, t{}) {} dilations {}", step.y,
                       step.transposed ? "transposed_" : "", step.x, step.w, text(step.window),
                       step.dilations);
  }
  std::string operator()(const PointwiseStep& step) const {
    return fmt::format("t{} = {}(t{}{}{}){}", step.y, name(step.mode), step.x, operand(step.b),
                       operand(step.t), step.axis ? fmt::format(" axis {}", *step.axis) : "");
  }
  std::string operator()(const PoolingStep& step) const {
    return fmt::format("t{} = {}(t{}) {} {}", step.y, name(step.mode), step.x, step.extents,
                       text(step.window));
  }
  std::string operator()(const MatmulStep& step) const {
    const auto size = [](const char* what, const std::optional<size_t>& tensor) {
      return tensor ? fmt::format(" {} t{}", what, *tensor) : "";
    };
    return fmt::format("t{} = matmul(t{}, t{}){}{}{}", step.c, step.a, step.b,
                       size("rows", step.rows), size("columns", step.columns),
                       size("depth", step.depth));
  }
  std::string operator()(const ReductionStep& step) const {
    return fmt::format("t{} = {}(t{})", step.y, step.mode == kSum ? "sum" : "largest", step.x);
  }
  std::string operator()(const DequantizeStep& step) const {
    return fmt::format("t{} = dequantize(t{}, t{}) block {}", step.y, step.x, step.scale,
                       step.block);
  }
  std::string operator()(const QuantizeStep& step) const {
    return fmt::format("t{}, t{} = quantize(t{}) block {}", step.y, step.scale, step.x, step.block);
  }

 private:
  static std::string operand(const std::optional<size_t>& tensor) {
    return tensor ? fmt::format(", t{}", *tensor) : "";
  }
};

}  // namespace

std::vector<int64_t> Tensor::strides() const {
  if (!given_strides.empty()) return given_strides;
  std::vector<int64_t> strides(dims.size(), 1);
  int64_t stride = 1;
  if (channels_last) stride = dims[1];
  for (size_t i = dims.size(); i-- > 0;) {
    if (channels_last && i == 1) continue;
    strides[i] = stride;
    stride = checked_mul(stride, dims[i]);
  }
  return strides;
}

std::string Graph::text() const {
  std::string joined;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    joined += fmt::format(
        "t{}: {}{}{}{}{}{}{}\n", i, tenon::name(tensor.dtype), tensor.dims,
        tensor.is_virtual ? " virtual" : "", tensor.channels_last ? " channels last" : "",
        tensor.given_strides.empty() ? "" : fmt::format(" strides {}", tensor.given_strides),
        tensor.in_tiles ? " in tiles of 128x4" : "",
        tensor.constant ? fmt::format(" = {}", *tensor.constant) : "");
  }
  for (const Step& step : steps) joined += std::visit(StepText{}, step) + "\n";
  return joined;
}

}  // namespace tenon::cudnn
