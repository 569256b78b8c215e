#include "kernels/cudnn/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace tenon::cudnn {
namespace {

std::string_view name(PointwiseMode mode) { return mode == kAdd ? "add" : "relu"; }

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
    return fmt::format("t{} = convolution(t{}, t{}) {} dilations {}", step.y, step.x, step.w,
                       text(step.window), step.dilations);
  }
  std::string operator()(const PointwiseStep& step) const {
    return fmt::format("t{} = {}(t{}{})", step.y, name(step.mode), step.x,
                       step.b ? fmt::format(", t{}", *step.b) : "");
  }
  std::string operator()(const PoolingStep& step) const {
    return fmt::format("t{} = {}(t{}) {} {}", step.y, name(step.mode), step.x, step.extents,
                       text(step.window));
  }
};

}  // namespace

std::vector<int64_t> Tensor::strides() const {
  std::vector<int64_t> strides(dims.size(), 1);
  int64_t stride = 1;
  if (channels_last) stride = dims[1];
  for (size_t i = dims.size(); i-- > 0;) {
    if (channels_last && i == 1) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

std::string Graph::text() const {
  std::string joined;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    joined += fmt::format("t{}: {}{}{}{}\n", i, tenon::name(tensor.dtype), tensor.dims,
                          tensor.is_virtual ? " virtual" : "",
                          tensor.channels_last ? " channels last" : "");
  }
  for (const Step& step : steps) joined += std::visit(StepText{}, step) + "\n";
  return joined;
}

}  // namespace tenon::cudnn
